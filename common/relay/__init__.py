"""Both ends of gRPC: a server for stock sidecars and a client for vendors' drivers. They forward bytes, unparsed.

Both speak HTTP/2 themselves. A gRPC library would report statuses of its own as if they were the vendor's; here only
trailers from the vendor count as its status.

Read in this order, each building on the ones before:

* `errors`: the errors between CSI Bridge and a peer.
* `frames`, `hpack`, `metadata`: HTTP/2's frames, gRPC's messages, headers and statuses, as bytes. Pure.
* `connection`: one HTTP/2 connection: the loop that reads frames, and all that both sides share.
* `server_call`, `server`: from a sidecar's request to a handler and back.
* `client_call`, `client_connection`, `client`: from a request to the vendor's own status.
"""
