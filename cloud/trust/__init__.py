"""Who may do what: tokens and certificates of nodes, denials, the policy, and the audit log.

Read in this order:

* `trust_store`: tokens, certificates, locks and denials, in memory and on disk.
"""
