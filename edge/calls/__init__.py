"""Calls to the vendors' drivers of this node.

Read in this order:

* `drivers`, `driver_call`: one driver on its socket; the end of a call to it.
* `node_requests`: the requests of the Node service.
* `controller_lease`: what an agent without its hub may still do with storage that every node reaches.
"""
