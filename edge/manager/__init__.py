"""Brings the mounts of this node in line with its pods. Other packages use it through `edge.volume_manager`.

Read in this order:

* `rows`: the record of each volume's mounts in memory.
* `steps`, `host`: the steps; the surroundings of a task.
* `task`: one volume, one step at a time. Start here. Its parts are:
* `use`, `staging`: the checks before a call.
* `deferral`: hands a published block device over to the pod's runtime.
* `expander`, `upkeep`, `shared_look`: expansion; regular work while a volume is mounted.
* `facts`: Events and sizes for the hub.
"""
