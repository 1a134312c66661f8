"""Placement: finds the node for each call, where each node has storage of its own.

Read in this order:

* `placement`: decides, and records the outcome of each call. The others are its parts.
* `fleet`: the nodes that run a driver, and their own descriptions of it.
* `requests`: names, ids and topologies in a CSI request.
* `ledger`, `claims`: names, ids and their nodes, on disk; how long a node holds a name.
* `affinity`: the nodes that PersistentVolumes allow.
* `inventory`: the volumes and snapshots that a node's driver lists.
* `capabilities`: the capabilities of several nodes' drivers, merged.
* `segment`: the bridge's topology segment, added to answers and removed from requests.
"""
