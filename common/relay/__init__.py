"""Both ends of gRPC: a server for stock sidecars and a client for vendors' drivers. They forward bytes, unparsed.

Both speak HTTP/2 themselves. A gRPC library would report statuses of its own as if they were the vendor's; here only
trailers from the vendor count as its status.

Read in this order, each building on the ones before:

* `errors`: the errors, by fault: ours or the peer's.
* `framing`, `hpack`, `metadata`: gRPC's messages, headers and statuses as bytes. Pure.
* `frames`, `frame_reader`, `listener`, `http2`: one HTTP/2 connection, without I/O.
* `pump`: connects it to a socket.
* `server_call`, `server_connection`, `server`: from a sidecar's request to a handler and back.
* `library_texts`, `client_call`, `client_connection`, `client`: from a request to the vendor's own status.
* `unary_receiver`, `awaited_call`: a call with one answer; a call that a coroutine awaits.
"""
