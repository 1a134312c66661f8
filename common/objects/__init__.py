"""Kubernetes objects on their way to a node, and facts on their way back.

Read in this order. The protocol that brings a copy up to date, without I/O:

* `objects`, `digest`: an object and its key; what two sides compare.
* `sync_messages`, `sync`: the messages; the rules. Start here.
* `sync_stream`: this protocol on a stream of a link.

What hub and agent tell each other in objects:

* `pod_fact`: how an agent tells the state of a pod's volumes.
* `left_over`: how it tells of mounts that no pod wants.
* `sole_use`: the claim to a volume that one node at a time may have, without an attachment.
* `offline_policy`: whether a volume stays with a node that is away, and how an agent tells that it fences it.
* `topology`: the bridge's topology segment.
* `node_selector`, `quantity`: two formats of Kubernetes' API.
"""
