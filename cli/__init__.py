"""The `csi-bridge` command.

Read in this order:

* `main`: all commands. Each imports its code only when it runs.
* `options`, `command`: how a command declares a flag with its variable; `--help`, errors, Go's spelling of flags.
* `process_options`: the flags of `hub`, `driver` and `edge run`.
* `process`: how a long-running command starts, drains and stops.
* `operator_options`, `operator`: the flags of commands for operators, and their link to the hub on this host.
* `call`: `call`.
* `hub_state`, `table`: the hub's state; answers as tables or JSON.
* `status`, `node_list`: `status` and `nodes`.
* `listings`: `denials`, `facts`, `token list` and `volumes`.
* `order`: `forget`, `trust`, `deny`, `allow`, `fence` and `unfence`, `token create` and `token revoke`.
* `audit`, `abandon`: `audit` and `forget --abandon-volumes`, orders, too.
* `edge_join`, `edge_volumes`: `edge join`, `edge volumes`.
* `doctor`, `demo`: the commands of these names.
* `reference`: writes docs/reference.md (`make reference`).
"""
