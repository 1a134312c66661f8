"""The detach: it waits until its node surely does not write any more.

Read in this order:

* `mount_guard`: the decision. Start here.
* `mounts`, `absences`, `fences`: the volumes that nodes use, the nodes that are away, and those that an operator takes
  for dead.
* `sole_use`: lets one node at a time have a volume with a single writer that Kubernetes does not attach.
* `policy_problems`: offline policies that are wrong or do not count.
"""
