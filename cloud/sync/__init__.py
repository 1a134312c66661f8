"""Sends each edge node the Kubernetes objects that concern it, and receives the node's facts.

Read in this order:

* `closures`: the objects that each node gets.
* `fact_kinds`, `fact_quota`, `fact_table`, `facts`: the nodes' facts, checked and recorded.
* `in_use`: the volumes that stand in each Node's `volumesInUse`, and the agents that wait for them.
* `streams`: objects and facts on the wire.
"""
