"""Placement: finds the node for each call. Decides purely, claims names by compare-and-set, and carries the call.

Read in this order:

* `placement`: the three steps of a call.
* `decisions`, `decide`, `find`: decide; the node of a call, and the node of an id, as tables of rules.
* `requests`, `fleet`, `affinity`: names, ids and topologies in a request; the nodes of a driver and their reports; the
  nodes that PersistentVolumes allow.
* `claim_store`, `claim_rules`, `memory_rows`: claim; the Protocol, its rules, and its rows in memory.
* `sqlite_claims`, `sqlite_rows`: the claim store in an SQLite file.
* `pending`, `attempts`, `recent`: this hub's creates that run, the exemption of pinned creates, and what these made.
* `carry`, `outcome`: carry; the call on its way, and the meaning of its end.
* `elections`: the nodes that serve drivers whose storage every node reaches.
* `fan_out`: a call that the hub answers itself, after calls of its own to nodes.
* `capacity`: GetCapacity of several nodes.
* `pages`, `page_tokens`: ListVolumes and its like, node by node; the tokens between two pages.
* `question`: one call of the hub's own to a node.
* `inventory`: reads all that a node's driver lists, for the claim store and the leak audit.
* `capabilities`, `offers`: the answers that sidecars get about a driver, by the votes of its nodes.
* `foreign_ids`: answers to creates that name another node's thing.
* `segment`: the bridge's topology segment, added to answers and removed from requests.
"""
