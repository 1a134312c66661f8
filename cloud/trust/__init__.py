"""Decides which peers the hub trusts, and with what: tokens, certificates, denials, the policy; and the audit log.

Read in this order:

* `audit_file`, `audit_log`: the events, as JSON lines that rotate.
* `trust_store`: tokens, certificates, locks and denials, in memory and on disk.
"""
