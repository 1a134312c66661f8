"""The `csi-bridge` command.

Read in this order:

* `main`: all commands. Each imports its code only when it runs.
* `options`, `command`: how a command declares a flag with its variable; `--help`, errors, Go's spelling of flags.
* `process_options`: the flags of `hub`, `driver` and `edge run`.
* `process`: how a long-running command starts, drains and stops.
* `operators`: the commands that ask the hub on this host.
* `edge_join`, `edge_volumes`: `edge join`, `edge volumes`.
* `doctor`, `demo`: the commands of these names.
"""
