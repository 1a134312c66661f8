"""The `csi-bridge` command.

Read in this order:

* `main`: all commands. Each imports its code only when it runs.
* `options`, `command`: how a command declares a flag with its variable; `--help`, errors, Go's spelling of flags.
* `process_options`: the flags of `hub`, `driver` and `edge run`.
* `process`: how a long-running command starts, drains and stops.
* `operator_options`, `operator`: the flags of commands for operators, and their link to the hub on this host.
* `call`: `call`.
* `hub_state`, `table`: the hub's state as text or JSON; tables.
* `status`, `node_list`, `volumes`, `facts`, `denials`: `status`, `nodes`, `volumes`, `facts`, `denials`.
* `order`, `tokens`: `forget`, `trust`, `deny` and `allow`; `token create` and `token list`.
* `audit`, `abandon`: `audit` and `forget --abandon-volumes`, orders, too.
* `edge_join`, `edge_volumes`: `edge join`, `edge volumes`.
* `doctor`, `demo`: the commands of these names.
* `reference`: writes docs/reference.md (`make reference`).
"""
