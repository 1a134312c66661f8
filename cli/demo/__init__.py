"""`csi-bridge demo`: one volume's whole life on this machine, with a reboot and a cut link.

Read in this order:

* `story`: the scenes.
* `stage`, `objects`: the processes and the link between them; the pod and its volume.
* `leash`: children that end with the demo, however it ends.
* `teller`: output on the terminal.
"""
