"""Fences volumes: stops their writers on this node when the agent's lease ends.

Read in this order:

* `plan`: the volumes to fence and the end of the lease, in files that the agent and its watchdog process share.
* `holders`: finds the processes that can write to a volume.
* `disks`: whether anything still uses a volume's device, and how it is cut off.
* `stop`: stops all writers of volumes: kills, unmounts, cuts the device, resets the machine.
* `watchdog`: the process that does this when the agent has died or hangs.
* `keeper`: keeps that process running.
* `fencing`: the agent's part. Start here.
"""
