"""The CSI 1.13 contract: a csi.proto, the code generated from it, and a table of its methods.

Read `csi.proto` for the messages. The bridge forwards every method under `/csi.v1.` as bytes, also one that is not in
the table.

* `methods`: each method's path, message types, and whether it streams.
* `volume_context`: the bridge's own key in a volume's context.
* `redact`: a message without its secrets.
* `reports`: a driver's description of itself.
"""
