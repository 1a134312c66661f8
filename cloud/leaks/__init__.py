"""The leak audit: compares the objects of Kubernetes, the hub's records, the nodes' lists and their mounts.

It finds the volumes that everybody has forgotten, and the objects whose volume is gone. It changes nothing. The audit
log (`cloud.trust.audit`) is another thing. Read in this order:

* `leak_audit`: one audit from its beginning to its end, at an operator's order and in the background. Start here.
* `tally`: the nodes' lists, as far as the audit keeps them.
* `verdicts`: the leaks among all that, and the things that cannot be judged.
"""
