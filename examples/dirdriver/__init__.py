"""dirdriver: a complete small CSI 1.13 driver over directories and sparse files.

It stands for a vendor's unmodified driver, so it imports nothing of the bridge but `common.csi`. Read in this order:

1. `settings`, `main`, `server`: the switches, the command, the process.
2. `calls`: what happens round every RPC: faults, one operation per key, the call log, errors.
3. `identity`, `volumes`, `attachments`, `snapshots`, `groups`, `metadata`, `health`, `node`: the RPCs, by noun.
4. `driver`, `state`, `records`, `pool`: what is kept, and how a crash is survived.
5. `loops`, `mounts`, `filesystems`, `local`: the node's devices and mounts.

`access`, `names`, `paging`, `ranges`, `sizes`, `topology`, `wishes` are pure: no I/O, no clock.
"""
