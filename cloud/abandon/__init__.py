"""The abandonment of a node that is gone for good: its own storage is released, so that nothing waits for it.

Read in this order:

* `own_storage`: which PersistentVolumes and VolumeSnapshotContents are of one node's own storage.
* `release`, `cluster_release`: one pass, which releases them and all that hangs on them; the same in a cluster.
* `node_ends`, `abandonment`: the parts of a hub that it works on; an operator's order, and when it is refused.
"""
