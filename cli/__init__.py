"""The `csi-bridge` command.

Read in this order:

* `main`: all sub-commands. Each imports its code only when it runs.
* `options`, `goflags`: settings as flags, in Go's spelling too.
* `process`: how a long-running command starts, drains and stops.
* `operator`, `operator_settings`: the link of a person's command to the hub on this host.
* `call`, `call_settings`: `call`.
* `hub_state`, `table`, `json_text`, `listing_settings`: the hub's state; tables and JSON.
* `status`, `status_settings`, `node_list`, `volumes`: `status`, `nodes`, `volumes`.
* `order`, `order_settings`: `forget` and `trust`.
* `edge_volumes`, `edge_volumes_settings`: `edge volumes`.
* `doctor`, `doctor_settings`, `demo`: `doctor` and `demo`.
* `reference`: writes docs/reference.md (`make reference`).
"""
