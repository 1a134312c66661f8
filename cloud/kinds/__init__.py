"""The kinds of Kubernetes objects that the hub sends to edge nodes. No module here does I/O.

Read in this order, each building on the ones before. A kind's module is called as Kubernetes calls its resource.

* `rules`: what the rules of every kind are made of.
* `pods`, `persistentvolumeclaims`, `persistentvolumes`, `volumeattachments`: these rules for one kind each.
* `nodes`, `csidrivers`, `storageclasses`, `secrets`, `tokens`: the same.
* `table`: all kinds.
"""
