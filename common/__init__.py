"""Shared by the hub, the proxy driver, the agent and the command line. Imports nothing of `cloud`, `edge` or `cli`.

Read in this order. The session protocol, without I/O:

* `status`, `errors`: how a call ended; the errors of the bridge, each with its gRPC code.
* `codec`, `messages`: frames as dataclasses and as bytes.
* `receiver`: takes the events of a stream.
* `limits`, `stream_books`, `outbox`, `inbox`: the parts of a session.
* `session`: the rules of the protocol. Start here if you read one module only.

A session on the event loop and on the network:

* `deadlines`: those of many calls, for one timer.
* `batch`: the writes that one read causes, which leave together.
* `link`: runs a session on the event loop; streams as objects to await.
* `sockets`, `alerts`, `tls`, `endpoint`: UNIX sockets, TLS's refusals, certificates, addresses.
* `peer`, `certificate`: the other side of a connection; the names and the key of its certificate.
* `certificate_ends`: when this process's certificate and its CA end.
* `tcp`: a TCP connection under a WebSocket: before TLS, its options, its errors in words.
* `websocket_frames`, `transport`: the usual frame of a WebSocket; a WebSocket under a link.
* `backoff`, `proxy`, `dial`, `uplink`, `standing`: make a link, keep it, keep a stream open on it.
* `local_dial`: a link between two parts of one process.
* `rotation`: moves an uplink to new certificate files.
* `handshakes`, `listener`: the connections without a hello, and their limit; accept links.
* `enrolment`: how a node joins and renews its certificate, and the token that invites it.

The objects and facts between hub and agent:

* `objects`, `digest`, `sync_messages`, `sync`: the protocol that brings a copy up to date, without I/O.
* `sync_stream`: this protocol on a stream of a link.
* `pod_fact`: how an agent tells the state of a pod's volumes.
* `left_over`: how it tells of mounts that no pod wants.
* `sole_use`: the claim to a volume that one node at a time may have, without an attachment.
* `offline_policy`: whether a volume stays with a node that is away, and how an agent tells that it fences it.

For every process:

* `parsers`, `settings`: the values that an operator wrote, read and checked.
* `pages`: the state of a hub or an agent, as JSON over HTTP on a UNIX socket.
* `operator_orders`: the orders of operators to the hub, as dataclasses.
* `tasks`, `token_bucket`, `line_limit`, `line_writer`, `logs`: tasks with an owner; log lines from a thread, in bounds.
* `metrics`, `accounting`, `exposition`, `httpd`, `version`: one log line and one metric per call; `/metrics`.
* `files`, `state_file`: a file replaced as a whole; a JSON file with the version of its form, in a closed directory.
* `database`, `database_writer`: an SQLite file with the version of its schema; the one thread that writes to it.
* `fault_points`: places at which a test kills the agent or the hub.

Of CSI and Kubernetes:

* `csi`, `relay`: the CSI contract; both ends of gRPC.
* `redact`, `reports`, `topology`: secrets removed; a driver's description of itself; the bridge's topology segment.
* `node_selector`, `quantity`: two formats of Kubernetes' API.
"""
