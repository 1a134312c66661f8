"""The abandonment of a node that is gone for good: its own storage is released, so that nothing waits for it.

The command `forget --abandon-volumes` does it, with the operator's kubeconfig. Read in this order:

* `own_storage`: which PersistentVolumes and VolumeSnapshotContents are of one node's own storage.
* `abandonment`: the hub's part, two orders.
* `cluster_release`: one pass of the command, which releases them and all that hangs on them.
"""
