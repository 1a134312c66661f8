"""The part of a hub that has Kubernetes objects: it brings them to the nodes, and takes the facts of the nodes.

Read in this order:

* `sync_part`: the objects and facts of a hub, put together. Start here.
* `manifests_part`, `kubernetes_part`: the same with manifests, and with a Kubernetes API server.
* `references`, `cluster_references`: the objects that name volumes and snapshots; read from a cluster.
* `volume_report`: the volumes, for `csi-bridge volumes`.
"""
