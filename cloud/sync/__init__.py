"""Sends each edge node the Kubernetes objects that concern it, and receives the node's facts.

A source has the cluster's objects. `closures` picks those of one node, `streams` sends them to its agent, and `facts`
takes the agent's facts.

Read in this order, each building on the ones before:

* `fields`: reads one object's fields; its errors name the field. Pure.
* `kind_rules`: how objects of a kind are checked, which fields are kept, which other objects they need. Pure.
* `pods`, `persistentvolumeclaims`, `persistentvolumes`, `volumeattachments`: these rules for one kind each.
* `nodes`, `csidrivers`, `secrets`, `tokens`, `kinds`: the same, and the table of all kinds.
* `source`, `closures`: where objects come from; which of them each node gets.
* `documents`, `manifest_objects`, `good_manifests`, `manifest_files`, `binding`, `manifests`: the source that reads a
  directory of YAML.
* `reflector`, `on_demand`, `secret_reader`, `token_minter`, `cluster`: the source that follows a Kubernetes API server.
* `fact_kinds`, `fact_files`, `facts`: the nodes' facts, checked and on disk.
* `streams`: objects and facts on the wire.
"""
