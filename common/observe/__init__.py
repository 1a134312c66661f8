"""What people see of a running process: its log lines, its metrics, its version.

Read in this order:

* `logs`, `line_writer`, `line_limit`, `token_bucket`: log lines from a thread, in bounds.
* `metrics`, `accounting`: one log line and one metric per call.
* `exposition`, `httpd`: `/metrics` and `/healthz`.
* `tasks`: tasks with an owner, whose failure is logged.
* `version`: the version of this program.
"""
