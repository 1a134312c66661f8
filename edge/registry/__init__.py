"""The drivers of this node: found, registered, and known by name.

Read in this order:

* `registration`: the rules of a registration.
* `plugin_sockets`, `plugin_client`, `registration_handler`: a kubelet's plugin registry; `edge.registrar` watches it.
* `driver_sockets`, `driver_services`: one driver object per socket; the socket of a driver that serves a call.
* `drivers_store`: one driver; all by name, in memory and on disk.
* `driver_registry`: the drivers as the other packages see them.
"""
