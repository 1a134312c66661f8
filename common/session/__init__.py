"""The protocol between two processes of the bridge: streams, credit and acknowledgements on one connection.

Read in this order:

* `receiver`: takes the events of a stream.
* `limits`, `stream_books`, `outbox`, `inbox`: the parts of a session.
* `session`: the rules of the protocol. Start here if you read one module only.
* `deadlines`: those of many calls, for one timer; how long before its caller a hop gives a call up.
* `batch`: the writes that one read causes, which leave together.
* `link`: runs a session on the event loop; streams as objects to await.
"""
