"""The identity of this node: its key and certificate, and the machine that they are for.

Read in this order:

* `instance`: the identity of this machine.
* `identity`, `keys`, `key_maker`: the files; a short process that makes a key.
* `hub_questions`, `join`, `renewal`: how the node gets a certificate, and renews it.
* `hub_mark`: the mark of the hub's records, for a hub that loses them.
"""
