"""The records: what a hub must still know after it was killed.

* `records`: the interface, and the kinds of records.
* `directory`: the state directory, which one hub at a time uses.
* `sqlite`: the records in a file of the state directory.
* `objects`, `kubernetes`: where each record stands in the objects of a cluster; the records there.
"""
