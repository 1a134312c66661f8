"""Placement: finds the node for each call. `cloud.claims` records names and ids before callers rely on them.

Read in this order:

* `placement`: the steps of a call.
* `decisions`: a decision as data. Pure.
* `route`: the node of a call, by numbered rules. Pure.
* `find`: the node that has an id, by numbered rules. Pure.
* `affinity`: the nodes that PersistentVolumes allow.
* `outcome`: the state of a name after a call's end.
* `capacity`: GetCapacity of several nodes.
* `pages`, `page_tokens`: ListVolumes and its like, node by node; the tokens between two pages.
* `inventory`: reads the complete list of a node's driver, for the book and the leak audit.
* `foreign_ids`: answers to creates that name another node's thing.
* `segment`: adds the bridge's topology segment to answers, and removes it from requests.
"""
