"""Sends each edge node the Kubernetes objects that concern it, and receives the node's facts.

Read in this order:

* `closures`: the objects that each node gets.
* `fact_kinds`, `fact_quota`, `fact_table`, `facts`: the nodes' facts, checked and recorded.
* `streams`: objects and facts on the wire.
"""
