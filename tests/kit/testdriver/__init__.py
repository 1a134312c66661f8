"""testdriver: the example driver with every feature of CSI 1.13, and with faults, for tests.

It plays a vendor's driver whose features a test chooses by flags (`--help`). It imports nothing of the bridge but
`common.csi`, and shares the modules of `examples.dirdriver` that it does not replace. Unlike that driver it records
node calls: a second one with other arguments is ALREADY_EXISTS, as the CSI spec demands. With `--no-topology` several
processes, each with its own `--node-id`, may share a state directory, like nodes of one NFS server.

Read in this order:

* `main`, `settings`, `server`: the command, its flags, the process and its socket.
* `calls`, `call_log`, `faults`: the work around every RPC.
* `controller`, `snapshots`, `metadata`, `node`, `health`: the RPCs.
* `state`: records and data, and how they survive a crash.
* `access`, `local`: what a volume can serve, and how it comes up on the machine.
"""
