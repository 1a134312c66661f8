"""The claims: which node has a name, and what it made under it.

Read in this order:

* `rules`, `requests`: the fields of calls; names, ids and topologies in a request.
* `claim`, `book`: the claims of one driver in memory: one row a name, with one state. Pure.
* `claims`: all books, written through to the records. Start here.
* `election`: the node that serves a driver of many nodes. Pure.
* `ledger`, `recent`: what the leak audit reads; what pinned creates have made lately.
"""
