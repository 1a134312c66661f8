"""The Kubernetes API, as the hub uses it.

Read in this order:

* `client`: requests and watches. Start here.
* `credentials`: the kubeconfig, and tokens that change.
* `kept_connections`, `http_answer`: connections for the most frequent requests, and what they read.
* `work_queue`: when something is read or written, again at intervals, and after a failure.
* `node_marks`: labels and taints of the Nodes that the hub makes.
"""
