"""The records: the knowledge of a hub that must outlive its process.

* `records`: the interface, and the kinds of records.
* `directory`: the state directory, which one hub at a time uses.
* `sqlite`: the records in a file of the state directory.
* `objects`: where each record stands in the objects of a cluster.
* `object_copy`, `object_writer`: a standby's copy of these objects; the requests of the hub that leads.
* `kubernetes`: the records there.
"""
