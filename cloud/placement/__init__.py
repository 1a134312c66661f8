"""Placement: finds the node for each call. `cloud.claims` records names and ids before callers rely on them.

Read in this order:

* `placement`: the steps of a call.
* `decisions`, `route`, `find`: the decision; the node of a call, and the node of an id, by numbered rules. Pure.
* `affinity`: the nodes that PersistentVolumes allow.
* `outcome`: the meaning of a call's end.
* `capacity`: GetCapacity of several nodes.
* `pages`, `page_tokens`: ListVolumes and its like, node by node; the tokens between two pages.
* `inventory`: reads all that a node's driver lists, for the book and the leak audit.
* `foreign_ids`: answers to creates that name another node's thing.
* `segment`: the bridge's topology segment, added to answers and removed from requests.
"""
