"""Placement: finds the node for each call, gives names to nodes, and records both before callers rely on them.

Read in this order:

* `placement`: the steps of a call.
* `decisions`, `route`, `find`: the decision; the node of a call, and the node of an id, as tables of rules. Pure.
* `rules`, `requests`, `fleet`, `affinity`: the fields of calls; names, ids and topologies in a request; the nodes of a
  driver and their reports; the nodes that PersistentVolumes allow.
* `book`, `claim`: the claims of one driver in memory: one row a name, with one state. Pure.
* `claims`: all books, written through to the records.
* `ledger`, `recent`: what the leak audit reads; what pinned creates have made lately.
* `outcome`: the meaning of a call's end.
* `elections`: the nodes that serve drivers whose storage every node reaches.
* `capacity`: GetCapacity of several nodes.
* `pages`, `page_tokens`: ListVolumes and its like, node by node; the tokens between two pages.
* `inventory`: reads all that a node's driver lists, for the book and the leak audit.
* `capabilities`, `offers`: the answers that sidecars get about a driver, by the votes of its nodes.
* `foreign_ids`: answers to creates that name another node's thing.
* `segment`: the bridge's topology segment, added to answers and removed from requests.
"""
