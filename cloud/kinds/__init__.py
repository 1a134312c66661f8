"""The kinds of Kubernetes objects that the hub sends to edge nodes. No module here does I/O.

Read in this order, each building on the ones before. A kind's module is called as Kubernetes calls its resource.

* `fields`: reads one object's fields; its errors name the field.
* `kind_rules`: how objects of a kind are checked, which fields are kept, which other objects they need.
* `pods`, `persistentvolumeclaims`, `persistentvolumes`, `volumeattachments`: these rules for one kind each.
* `nodes`, `csidrivers`, `storageclasses`, `secrets`, `tokens`: the same.
* `table`: all kinds.
"""
