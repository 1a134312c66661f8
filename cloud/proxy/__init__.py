"""The parts of the proxy driver (`cloud.csi_proxy_driver`).

Read in this order:

* `driver_settings`: its flags.
* `identity_cache`: the answers about the driver, from the votes of its nodes.
* `forwarded_call`: one call on its way to the hub.
* `served_driver`: the description of a proxy driver inside the hub's process.
"""
