"""Sends each edge node the Kubernetes objects that concern it, and receives the node's facts.

A source has the cluster's objects. `closures` picks those of one node, `streams` sends them to its agent, and `facts`
takes the agent's facts.

Read in this order, each building on the ones before:

* `fields`: reads one object's fields; its errors name the field. Pure.
* `kind_rules`, `kinds`: the rules of one kind of object, and the table of all kinds. Pure.
* `pods`, `persistentvolumeclaims`, `persistentvolumes`, `volumeattachments`, `nodes`, `csidrivers`, `secrets`, `tokens`:
  one kind each: how its objects are checked, which fields are kept, which other objects they need. Pure.
* `source`, `closures`: where objects come from; which of them each node gets.
* `documents`, `manifest_objects`, `good_manifests`, `manifest_files`, `binding`, `manifests`: the source that reads a
  directory of YAML.
* `reflector`, `on_demand`, `secret_reader`, `token_minter`, `cluster`: the source that follows a Kubernetes API server.
* `fact_kinds`, `fact_files`, `facts`: the nodes' facts, checked and on disk.
* `streams`: objects and facts on the wire.
"""
