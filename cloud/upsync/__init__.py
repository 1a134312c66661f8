"""What the nodes tell, written to the Kubernetes API.

`write_queue` decides when something is written; one module per kind says what: Nodes, CSINodes, claims, events.
"""
