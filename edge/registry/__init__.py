"""The drivers of this node: how they are found, register, and are known by name.

Read `registration` (the rules), `driver_registry` (drivers by name), `driver_services` (which of a driver's sockets a
call goes to), then `edge.registrar`, which watches the sockets.
"""
