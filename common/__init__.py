"""Shared by the hub, the proxy driver, the agent and the command line. Imports nothing of `cloud`, `edge` or `cli`.

Read in this order. The words that all use:

* `status`, `errors`: how a call ended; the errors of the bridge, each with its gRPC code.
* `wording`: lists and texts, shortened for a message.
* `codec`, `messages`: frames as dataclasses and as bytes.
* `parsers`: the values that an operator wrote, as text.
* `operator_orders`: the orders of operators to the hub, as dataclasses.

The rooms:

* `session`: the protocol between two processes, without I/O. Start here.
* `net`, `links`: addresses, certificates and sockets; a session over a WebSocket, made again when it breaks.
* `objects`: Kubernetes objects and facts on their way between hub and agent.
* `csi`, `relay`: the CSI contract; both ends of gRPC.
* `store`, `observe`: files and databases; logs, metrics and tasks.
* `pages`: the state of a hub or an agent, as JSON over HTTP on a UNIX socket.
"""
