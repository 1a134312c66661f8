"""The places that a hub gets Kubernetes objects from: a directory of YAML files, or a Kubernetes API server.

Read in this order:

* `source`: what both have in common: the objects in memory, and the listeners that hear of changes.
* `manifests`: the source that reads a directory of YAML.
* `cluster`: the source that follows a Kubernetes API server.
"""
