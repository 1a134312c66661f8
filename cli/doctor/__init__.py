"""`csi-bridge doctor`: checks the parts of CSI Bridge on this machine, and names each fault with its remedy.

The doctor changes nothing. Read in this order:

* `finding`: the result of one check.
* `command`: finds the parts and runs their checks.
* `hub`, `proxy`, `agent`: the checks of one process each.
* `cluster`, `permissions`: the objects of a Kubernetes cluster, and the rights of the hub and of the stock sidecars.
* `certificates`, `sockets`, `disk`, `csi_probe`, `watchdog`: the checks of one kind of thing.
"""
