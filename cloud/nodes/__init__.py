"""The edge nodes: what the hub knows of each, its links, and the drivers that it reports.

Read in this order:

* `edge_nodes`, `visit`, `question`: every known node; one link of it; a call of the hub's own to it.
* `node_records`: what the hub still knows of a node after a restart.
* `report_judge`, `unique_segments`: whether a report counts; the topology segments that belong to one node each.
* `node_rights`: what the hub believes a node of its drivers, and which volumes it may get.
* `fleet`: the nodes of a driver, and their reports, for the decisions of `cloud.placement`.
* `capabilities`, `offers`: the answers that sidecars get about a driver, by the votes of its nodes.
* `elections`: the nodes that serve drivers whose storage every node reaches.
"""
