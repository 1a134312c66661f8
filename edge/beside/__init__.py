"""Direct volumes on a node with a kubelet: the agent answers the kubelet's calls about them in the driver's place.

An agent with `--relay-dir` and `--direct-runtime` imports this package. Read in this order:

* `node_pods`: the pods that may have a volume.
* `direct_calls`: one call of the kubelet's. Start here.
"""
