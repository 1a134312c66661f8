"""`csi-bridge doctor`: checks the parts of CSI Bridge on this machine, and names each fault with its remedy.

The doctor changes nothing. Read in this order:

* `finding`: the result of one check.
* `command`: finds the parts and runs their checks.
* `hub`, `proxy`, `cluster`, `agent`: the checks of one part each.
* `elections`: part of the checks of a hub.
* `permissions`, `storage_classes`: parts of the checks of a cluster.
* `sockets`, `csi_probe`, `hub_probe`, `certificates`, `clock`, `disk`, `direct`, `watchdog`: checks of one kind of
  thing.
"""
