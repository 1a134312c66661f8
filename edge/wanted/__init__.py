"""The volumes that this node's pods want, and the record of the mounts that there are.

Read in this order:

* `resolution`, `wanted`: the volumes that one pod wants; those of all pods, kept up to date. Start here.
* `object_fields`: reads the fields of objects.
* `opt_in`: decides whether a pod's runtime mounts a volume.
* `states`, `places`: the record of each volume's mounts, on disk; where each volume is mounted.
* `call_inputs`, `expansion`: the inputs of a call; when a volume grows.
* `tries`, `clock`: when a failed step is tried again; the time.
"""
