"""The hub and the proxy driver. The hub accepts links from agents and proxy drivers, and sends each call to a node.

Read in this order. The proxy driver:

* `driver_settings`, `identity_cache`, `forwarded_call`, `csi_proxy_driver`: it answers Identity from its cache and
  forwards other calls.

The hub:

* `hub_settings`: its flags.
* `uds_hub`: its links, and the table of the streams that each role may open. Start here.
* `admission`, `refusals`: checks each peer; the refused ones.
* `trust`, `join_part`: judges peers by certificates and denials; lets nodes join.
* `peer_ends`: when the peers' certificates end.
* `stream_turns`: an agent's streams over two links, one after another.
* `call`: one call on its way through the hub, which calls may pass, and the record of their outcome.
* `class_parameters`: takes the bridge's own parameters of a StorageClass out of a call.
* `mount_guard`: holds a detach back while its node may have the volume mounted.
* `mounts`, `absences`, `fences`: the volumes that nodes use, the nodes that are away, and those that an operator takes
  for dead.
* `sole_use`: lets one node at a time have a volume with a single writer that Kubernetes does not attach.
* `policy_problems`: offline policies that are wrong or do not count.
* `report_streams`, `orders`: serve reports of drivers, and operators' orders.
* `hub_pages`: the hub's state, over HTTP on its UNIX socket.
* `served_driver`, `served_drivers`: the proxy drivers inside the hub's process.
* `hub_parts`, `hub_process`: puts a hub together; opens its files and listeners, and runs it.
* `leadership`, `hub_lease`: when one of several hubs may work; the Lease that says so.
* `standby`: the listeners and links of a hub that waits for it.
* `edge_nodes`, `visit`, `question`: every known edge node; one link of it; a call of the hub's own to it.
* `node_records`: what the hub still knows of a node after a restart.
* `node_rights`: what the hub believes a node of its drivers, and which volumes it may get.
* `node_calls`: counts of each node's calls, for people.
* `report_judge`, `unique_segments`: whether a report counts; the topology segments that belong to one node each.
* `placement`, `election`: the node for each call; the node that serves a driver of many nodes.
* `records`: what the hub must still know after it was killed.
* `incarnation`: notices that records were lost, until an operator settles it.
* `kinds`, `sources`: the kinds of objects that nodes need, and the two places that objects come from.
* `sync`: objects to the nodes, facts from the nodes.
* `sync_part`, `manifests_part`: the objects and facts of a hub; those of a hub with manifests.
* `kubernetes_part`, `kube`, `kube_credentials`, `upsync`: the same with a Kubernetes API server.
* `kept_connections`, `http_answer`: connections for the most frequent requests to it, and what they read.
* `node_marks`: labels and taints of the Nodes that the hub makes.
* `volume_report`: the volumes, for `csi-bridge volumes`.
* `references`, `cluster_references`: the objects that name volumes and snapshots; read from a cluster.
* `abandon`: the storage of a node that is gone for good, and its release by `csi-bridge forget`.
* `leaks`: compares them with the nodes' lists and mounts, for `csi-bridge audit`.
"""
