"""The two gRPC ends of CSI Bridge, which forward bytes and never look inside.

What runs here: in the cloud, `server` faces the stock sidecars on csi.sock; at the edge, `client` faces the vendor's
driver on its socket. Both speak HTTP/2 themselves, because a status is the vendor's only if the vendor sent it, and
only real trailers, resets and GOAWAYs tell.

Read in this order, each building on the ones before:

* `errors`: what can go wrong, by whose fault.
* `framing`, `hpack`, `metadata`: gRPC's messages, headers and statuses as bytes. Pure.
* `frames`, `frame_reader`, `listener`, `http2`: one HTTP/2 connection. No I/O.
* `pump`: its socket.
* `server_call`, `server_connection`, `server`: from a sidecar's request to a handler and back.
* `library_texts`, `client_call`, `client_connection`, `client`: from a request to the vendor's own status.
"""
