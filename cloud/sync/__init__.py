"""What every edge node must know of the cluster, and what the nodes tell of themselves.

What runs here: a source holds the cluster's objects (`manifests`: a directory of YAML), `closures` picks for each node
those that concern it and nothing of anybody else's, `streams` tells them to the agents, and `facts` takes what the
agents tell upwards.

Read in this order, each building on the ones before:

* `fields`: reading one object's fields, with errors that name the field. Pure.
* `kind_rules`, then one module per kind (`pods`, `persistentvolumeclaims`, `persistentvolumes`, `volumeattachments`,
  `nodes`, `csidrivers`, `secrets`), and `kinds`, the table of them: what is checked, kept and pulled in. Pure.
* `source`: where objects come from.
* `closures`: which of them each node holds.
* `documents`, `manifest_objects`, `good_manifests`, `manifest_files`, `binding`, `manifests`: the source that reads a
  directory, for want of Kubernetes.
* `fact_kinds`, `fact_files`, `facts`: what the nodes tell, on disk.
* `streams`: both on the wire.
"""
