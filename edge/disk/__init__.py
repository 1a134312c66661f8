"""Files, mounts and devices below the kubelet's root directory. Nothing here calls a driver.

Read in this order:

* `layout`: every path.
* `root_dir`, `mounts`, `own_thread`: safe changes below the root directory; the mount table; calls that may hang.
* `volume_data`, `volume_dirs`: vol_data.json; the directories around a driver's calls.
* `ownership`: a pod's fsGroup on a volume's files.
* `loop_devices`, `block_devices`: block volumes.
* `runtimes`: the runtimes that mount volumes in their guest.
* `cdi`: files that let a container engine give a volume to its containers.
* `found_volumes`: volumes found on the disk after a crash.
"""
