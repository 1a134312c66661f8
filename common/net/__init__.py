"""Addresses, sockets and certificates: what a connection needs before it carries a session.

Read in this order:

* `endpoint`, `sockets`, `tcp`: addresses; UNIX sockets; a TCP connection, its options, and its errors in words.
* `proxy`: a connection through an HTTP proxy.
* `tls`, `alerts`: TLS; its refusals in words.
* `peer`, `certificate`: the other side of a connection; the names and the key of its certificate.
* `certificate_ends`: when this process's certificate and its CA end.
* `enrolment`: how a node joins and renews its certificate, and the token that invites it.
* `settings`: the values that an operator wrote about all this, read and checked.
"""
