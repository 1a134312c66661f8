"""What operators order.

* `orders`: serves their streams. Start here.

The leak audit compares the objects of Kubernetes, the hub's records, the nodes' lists and their mounts. It finds the
volumes that everybody has forgotten, and the objects whose volume is gone. It changes nothing. The audit log
(`cloud.trust.audit`) is another thing.

* `leak_audit`: one audit from its beginning to its end.
* `tally`: the nodes' lists, as far as the audit keeps them.
* `verdicts`: the leaks among all that, and the things that cannot be judged.

The abandonment of a node that is gone for good releases its own storage, so that nothing waits for it. The command
`forget --abandon-volumes` does it, with the operator's kubeconfig.

* `own_storage`: the PersistentVolumes and VolumeSnapshotContents of one node's own storage.
* `abandonment`: the hub's part, two orders.
* `cluster_release`: one pass of the command, which releases them and all that hangs on them.
"""
