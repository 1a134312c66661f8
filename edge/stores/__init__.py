"""The agent's database, `edge.db`.

Read in this order:

* `metastore`: opens it. Start here.
* `sealing`, `aes_gcm`: encryption of Secrets and tokens.
* `object_store`: the objects from the hub.
* `fact_store`: the facts for the hub, until the hub has them.
* `sync_streams`: both on the link.
* `former_state`: protects the node from old state.
"""
