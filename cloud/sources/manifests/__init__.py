"""The source that reads a directory of YAML files.

Read in this order, each building on the ones before:

* `documents`: parses one file, and remembers the line of each field.
* `manifest_objects`: the objects of one file, checked.
* `manifest_files`: the files of the directory.
* `matching`, `pairs`: which volume a claim may be bound to; those that are bound, on disk.
* `binding`: does the work of Kubernetes' controllers: binds claims to volumes, makes UIDs.
* `manifests`: reads the directory again and again, and puts all this together.
"""
