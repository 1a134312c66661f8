"""The hub and the proxy driver. The hub accepts links from agents and proxy drivers, and sends each call to a node.

Read in this order. The proxy driver:

* `csi_proxy_driver`, `proxy`: it answers Identity from its cache and forwards other calls.

The hub:

* `hub_settings`: its flags.
* `uds_hub`: its links, and the table of the streams that each role may open. Start here.
* `hub_parts`, `hub_process`: puts a hub together; opens its files and listeners, and runs it.
* `hub_pages`: the hub's state, over HTTP on its UNIX socket.
* `join_part`, `peer_ends`: lets nodes join; when the peers' certificates end.
* `served_drivers`: the proxy drivers inside the hub's process.
* `standby`: the listeners and links of a hub that waits for the one that leads.

Its rooms:

* `calls`: one call on its way through the hub.
* `nodes`: every known edge node, its links and its drivers.
* `placement`, `claims`: the node for each call; the names and ids that each node has.
* `detach`: holds a detach back while its node may have the volume mounted.
* `records`: what the hub must still know after it was killed.
* `leadership`: when one of several hubs may work.
* `trust`: judges peers by certificates and denials.
* `kinds`, `sources`: the kinds of objects that nodes need, and the two places that objects come from.
* `sync`, `upsync`, `kube`: objects to the nodes and facts from them; these facts in Kubernetes; its API.
* `parts`: all this about objects, put together.
* `operators`: operators' orders, the leak audit, and the abandonment of a node.
"""
