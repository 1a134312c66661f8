"""dirdriver: a complete small CSI 1.13 driver over directories and sparse files.

It stands for a vendor's unmodified driver, so it imports nothing of the bridge but `common.csi`. Read in this order:

1. `main`, `settings`, `server`: the command, its switches, the process.
2. `calls`: what happens round every RPC: `call_log`, `faults`, `keys`, `errors`.
3. The RPCs, by noun. Controller: `volumes`, `inventory`, `attachments`, `snapshots`, `groups`, `metadata`, `health`;
   node: `stagings`, `publications`, `inline`, `node`, `usage`; both: `identity`, `capabilities`, `answers`.
4. What is kept, and how a crash is survived: `driver`, `records`, `state`, `pool`, `copies`, `images`.
5. The machine: `local`, `loops`, `mounts`, `filesystems`, `commands`.

`access`, `names`, `paging`, `ranges`, `sizes`, `topology`, `wishes` are pure: no I/O, no clock.
"""
