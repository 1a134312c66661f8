"""The CSI 1.13 contract: our own csi.proto, the code generated from it, and a table of its methods.

Read `csi.proto` for the messages and `methods.py` for what the bridge knows of each method. Everything under
`/csi.v1.` that is not in that table still passes through: the bridge forwards bytes.
"""
