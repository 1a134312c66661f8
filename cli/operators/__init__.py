"""The commands for operators, which ask the hub on this host.

Read in this order:

* `operator_options`, `operator`: their flags; their link to the hub.
* `call`: `call`.
* `hub_state`, `table`: the hub's state; answers as tables or JSON.
* `status`, `node_list`: `status` and `nodes`.
* `listings`: `denials`, `facts`, `token list` and `volumes`.
* `order`: `forget`, `trust`, `deny`, `allow`, `fence` and `unfence`, `token create` and `token revoke`.
* `audit`, `abandon`: `audit` and `forget --abandon-volumes`, orders, too.
"""
