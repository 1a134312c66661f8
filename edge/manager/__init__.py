"""Brings the mounts of this node in line with its pods. Other packages use it through `edge.volume_manager`.

Read in this order:

* `opt_in`: decides whether a pod's runtime mounts a volume.
* `resolution`, `wanted`: the volumes that one pod wants; those of all pods, kept up to date.
* `states`, `rows`, `places`: the record of each volume's mounts, on disk and in memory; where each volume is mounted.
* `steps`, `host`, `clock`: the steps; the surroundings of a task; the time.
* `task`: one volume, one step at a time. Its parts are:
* `use`, `staging`, `call_inputs`: the checks and inputs before a call.
* `deferral`: hands a published block device over to the pod's runtime.
* `expansion`, `expander`, `upkeep`, `shared_look`: expansion; regular work while a volume is mounted.
* `reconstruction`, `leftovers`: volumes found at start; directories that belong to no volume.
* `facts`, `report`: Events and sizes for the hub; the volumes for people.
"""
