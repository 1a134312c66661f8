"""The sources of a hub's Kubernetes objects: a directory of YAML files, or a Kubernetes API server.

Read in this order:

* `source`: the common part: the objects in memory, and the listeners for changes.
* `index`: the objects of one kind by a key.
* `manifests`: the source that reads a directory of YAML.
* `cluster`: the source that follows a Kubernetes API server.
"""
