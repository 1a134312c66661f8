"""Placement: which node has a volume, where each node has storage of its own.

placement      the answer, and what of it is kept of a call's outcome
├── fleet          what the nodes that run a driver say of themselves
├── requests       what a request says of where it belongs
├── ledger         on disk: who holds a name, and who has an id
├── claims         until when a node holds a name
├── affinity       what PersistentVolumes say of it
├── inventory      what the nodes themselves list
├── capabilities   what several nodes' drivers can do as one
└── segment        the bridge's own topology, for vendors who have none
"""
