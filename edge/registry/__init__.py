"""The drivers of this node: found, registered, and known by name.

Read in this order:

* `registration`: the rules of a registration.
* `plugin_sockets`, `plugin_client`, `registration_handler`: a kubelet's plugin registry; `edge.registrar` watches it.
* `driver_sockets`, `driver_services`: one driver object per socket; which socket of a driver serves which call.
* `drivers_store`, `driver_file`: the drivers by name; the part of this that is on disk.
* `node_driver`, `driver_registry`: one driver, and all, as the other packages see them.
"""
