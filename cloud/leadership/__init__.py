"""Several hubs: the one that leads, and the mark of its records.

Read in this order:

* `leadership`: when a hub may work. Pure.
* `hub_lease`: the Lease that says so.
* `incarnation`: notices that records were lost, until an operator settles it.
"""
