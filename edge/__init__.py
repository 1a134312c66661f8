"""The agent on an edge node: it calls vendors' drivers for the hub, and mounts pods' volumes where no kubelet does.

Read in this order. Calls:

* `settings`: its flags.
* `agent`: the link to the hub and the streams on it. Start here.
* `hub_call`: one call of the hub's, from its request to its delivered answer.
* `operations`: joins retries to running calls; ends calls that take too long.
* `calls`: the vendor's driver on its socket.
* `identity`: the node's key and certificate, and how it gets and renews them.

Volumes of pods, where no kubelet serves the node:

* `kubelet_part`: puts the following together.
* `stores`: objects from the hub and facts for it, on disk.
* `registrar`, `registry`: the drivers of this node.
* `volumes`, `volume_errors`: a volume as a pod wants it; why a step of it failed.
* `volume_manager`, `wanted`, `manager`: the volumes that pods want; one task per volume, which mounts and unmounts it.
* `csi_volume_plugin`, `disk`: a task's steps, as the kubelet does them.
* `fencing`: shuts file systems down when the hub has been silent for too long.
* `direct`: volumes whose file system the pod's runtime mounts in its guest.
* `reports`: the node's reports about itself and its pods.
* `home`: protects mounted volumes from a changed `--node` or `--root-dir`.

Beside a kubelet:

* `kubelet_relay`: sockets on which the kubelet calls drivers through the agent.
* `beside`: its calls about volumes that the pod's runtime mounts.
"""
