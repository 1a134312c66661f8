"""The shortest bridge: a proxy driver, a hub and an agent that do the least work of a bridge. It is a yardstick.

Bare relays say what sockets and an interpreter cost. These programs say what a bridge's work costs if as little code as
possible does it. They use nothing of the product but the generated CSI messages, so they stay when it changes.

* `link`: WebSocket messages, which the dialling end masks, with frames, credit and acknowledgements.
* `books`: metrics, and a JSON log line a call.
* `http2`: one end of an HTTP/2 connection.
* `proxy`: sidecar to hub, with deadlines.
* `hub`: routes by node, and claims a name for each create.
* `agent`: hub to driver, with the operations under way and the successes that nobody has acknowledged.
* `run`: the programs' start.

They leave out what a bridge must have: hellos, keep-alive, drain and new links; lost links and cancelled calls; retries
that join; claims on a disk, elections, rights; messages above one frame, streams, and turns between them; full sockets;
HTTP/2's fragments, padding, resets and closed windows; settings, redaction, errors for people. Such input ends them.
"""
