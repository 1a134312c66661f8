"""testdriver: the example driver with every feature of CSI 1.13, and with faults, for tests of its callers.

It plays a vendor's driver whose features a test chooses by flags. It imports nothing of the bridge but `common.csi`,
and shares the modules of `examples.dirdriver` that it does not replace. Read in this order:

* `main`, `settings`, `server`: the command, its flags, the process.
* `calls`, `call_log`, `faults`, `keys`: the work around every RPC.
* `identity`, `capabilities`, `answers`: RPCs and messages that both services share.
* `volumes`, `inventory`, `attachments`, `snapshots`, `groups`, `metadata`, `health`: the controller's RPCs.
* `stagings`, `publications`, `inline`, `node`, `usage`: the node's RPCs.
* `driver`, `records`, `state`, `pool`, `copies`, `images`: the data, and how it survives a crash.
* `local`, `filesystems`: the machine.
* `access`, `names`, `paging`, `placing`, `ranges`, `units`, `wishes`: pure, without I/O or clock.
"""
