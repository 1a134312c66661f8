"""The edge nodes: the links of each, and the drivers that it reports.

Read in this order:

* `edge_nodes`, `known_node`: every known node; one of them, and which machine may have its name.
* `visit`, `question`: one link of a node; a call of the hub's own to it.
* `node_records`: the hub's knowledge of a node after a restart.
* `report_judge`, `unique_segments`: whether a report counts; the topology segments that belong to one node each.
* `node_rights`: the facts about its drivers that a node may tell, and the volumes that it may get.
* `fleet`: the nodes of a driver, and their reports, for the decisions of `cloud.placement`.
* `capabilities`, `offers`: the answers that sidecars get about a driver, by the votes of its nodes.
* `elections`: the nodes that serve drivers whose storage every node reaches.
"""
