"""The agent on an edge node: it calls vendors' drivers for the hub, and mounts pods' volumes where no kubelet does.

Read in this order. Calls:

* `settings`, `instance`: its flags; the identity of this machine.
* `identity`, `keys`, `key_maker`, `enrolment`, `join`, `renewal`: the node's key and certificate, how it gets and
  renews them.
* `agent`: the link to the hub and the streams on it. Start here.
* `problems`: what people must solve on this node, for them and the hub.
* `hub_mark`: the mark of the hub's records, for a hub that loses them.
* `hub_call`: one call of the hub's, from its request to its delivered answer.
* `operations`: joins retries to running calls; ends calls that take too long.
* `controller_lease`: what an agent without its hub may still do with storage that every node reaches.
* `drivers`, `driver_call`: one vendor's driver on its socket; the end of a call to it.

Volumes of pods, where no kubelet serves the node:

* `kubelet_part`: puts the following together.
* `sync_streams`, `metastore`, `stores`: objects from the hub and facts for it, on disk.
* `registrar`, `registry`: the drivers of this node.
* `volumes`, `volume_manager`, `manager`: a volume as a pod wants it; one task per volume, which mounts and unmounts it.
* `csi_volume_plugin`, `node_requests`, `volume_errors`, `tries`, `disk`: a task's steps, as the kubelet does them.
* `fencing`: shuts file systems down when the hub has been silent for too long.
* `direct`, `runtimes`: volumes whose file system the pod's runtime mounts in its guest, and these runtimes.
* `machine`, `node_facts`, `pod_facts`, `settling`: the node's reports about itself and its pods.
* `home`, `former_state`: protect mounted volumes from a changed `--node` or `--root-dir`, and from old state.

Beside a kubelet:

* `kubelet_relay`: sockets on which the kubelet calls drivers through the agent.
"""
