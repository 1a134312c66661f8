"""dirdriver: a small CSI 1.13 driver that keeps volumes in directories.

It plays the vendor's driver in the demo and on the pages about the first volume. It imports nothing of the bridge but
`common.csi`, the contract. Read in this order:

* `main`, `settings`, `server`: the command, its flags, and the gRPC server.
* `identity`, `volumes`, `snapshots`, `node`: the RPCs.
* `store`: the data of volumes and snapshots, and how it survives a crash.
* `access`, `names`, `paging`, `sizes`, `topology`: checks of requests, without I/O.
* `mounts`, `loops`, `commands`, `errors`: the machine below, and the errors above.
"""
