"""The agent's database. `edge.metastore` opens it.

Read in this order:

* `sealing`, `aes_gcm`: encryption of Secrets and tokens.
* `object_store`: the objects from the hub.
* `fact_store`: the facts for the hub, until the hub has them.
"""
