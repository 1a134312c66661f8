"""Links: a session over a WebSocket, dialled and kept, or accepted.

Read in this order:

* `websocket_frames`, `transport`: the usual frame of a WebSocket; a WebSocket under a link.
* `backoff`, `dial`, `uplink`: makes a link; keeps one to the hub that leads.
* `standing`: keeps a stream open on it.
* `local_dial`: a link between two parts of one process.
* `rotation`: moves an uplink to new certificate files.
* `handshakes`, `listener`: the connections without a hello, and their limit; accepts links.
"""
