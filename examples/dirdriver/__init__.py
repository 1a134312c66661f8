"""dirdriver: a complete small CSI 1.13 driver over directories and sparse files.

It stands for a vendor's unmodified driver, so it imports nothing of the bridge but `common.csi`. Read in this order:

* `main`, `settings`, `server`: the command, its flags, the process.
* `calls`, `call_log`, `faults`, `keys`, `errors`: the work around every RPC.
* `identity`, `capabilities`, `answers`: RPCs and messages that both services share.
* `volumes`, `inventory`, `attachments`, `snapshots`, `groups`, `metadata`, `health`: the controller's RPCs.
* `stagings`, `publications`, `inline`, `node`, `usage`: the Node's RPCs.
* `driver`, `records`, `state`, `pool`, `copies`, `images`: the data, and how it survives a crash.
* `local`, `loops`, `mounts`, `filesystems`, `commands`: the machine.
* `access`, `names`, `paging`, `ranges`, `sizes`, `topology`, `wishes`: pure, without I/O or clock.
"""
