"""The two gRPC ends of CSI Bridge, which forward bytes and never look inside.

What runs here: in the cloud, `server` faces the stock sidecars on csi.sock; at the edge, `client` faces the vendor's
driver on its socket. Both speak HTTP/2 themselves, because a status is the vendor's only if the vendor sent it, and
only real trailers, resets and GOAWAYs tell.

Read in this order: `errors` (what can go wrong, by whose fault), `framing` and `metadata` (gRPC's bytes, pure),
`http2` (one connection, no I/O), `pump` (its socket), then `server_call`, `server_connection`, `server` and
`client_call`, `client_connection`, `client`; `library_texts` last.
"""
