"""What this node tells the hub and people about itself.

Read in this order:

* `machine`, `node_facts`: the machine; its Node and CSINode.
* `pod_facts`, `settling`: the conditions of pods; waits until a burst of changes is over.
* `report`: the volumes, for people.
* `problems`: what people must solve on this node.
* `reconstruction`, `leftovers`: volumes found at start; directories that belong to no volume.
"""
