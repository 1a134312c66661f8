"""The source that reads a directory of YAML or JSON files.

Read in this order, each building on the ones before:

* `documents`: parses one file, and remembers the line of each field.
* `manifest_objects`: the objects of one file, checked.
* `good_manifests`: the last good content of each file, on disk.
* `manifest_files`: the files of the directory.
* `claim_sizes`: the sizes of bound claims, on disk.
* `binding`: does the work of Kubernetes' controllers: binds claims to volumes, makes UIDs.
* `manifests`: watches the directory and puts all this together.
"""
