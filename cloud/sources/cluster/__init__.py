"""The source that follows a Kubernetes API server.

Read in this order:

* `reflector`: lists and watches the objects of one kind.
* `on_demand`, `token_minter`: get Secrets and tokens one by one, when a node needs them.
* `cluster`: puts them together.
"""
