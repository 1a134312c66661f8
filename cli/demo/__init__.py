"""`csi-bridge demo`: one volume's whole life on this machine, with a reboot and a cut link.

* `story`: the acts.
* `network`: the link between agent and hub, a process that the story kills.
"""
