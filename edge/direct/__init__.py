"""Volumes whose file system the pod's runtime mounts: Kata Containers' direct-assigned volumes.

The agent hands the runtime a block device, and mounts nothing on the host. An agent imports this package when its
first such volume comes; any other agent never does. Read in this order:

* `mount_info`: what the runtime reads about one volume, byte for byte as Kata writes it.
* `store`: Kata's directory with these files.
* `shim_client`: asks the runtime of a running sandbox how full a volume is.
* `file_systems`: the file system on a block device, made for the guest.
* `hand_over`: the device, the guard at the target, and the mount info of one volume.
"""
