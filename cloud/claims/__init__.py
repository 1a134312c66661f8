"""The claims: the node that holds each name, and the things that it made under the name.

Read in this order:

* `rules`, `requests`: the fields of each CSI method; names, ids and topologies in a request.
* `claim`, `book`: the claims of one driver in memory: one row for a name, with one state. Pure.
* `claims`: all books, written through to the records. Start here.
* `election`: elects the node that serves a driver whose storage every node reaches. Pure.
* `ledger`, `recent`: the claims for the leak audit; the things that pinned creates have made lately.
"""
