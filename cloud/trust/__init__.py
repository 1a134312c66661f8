"""Decides which peers the hub trusts, by tokens, certificates and denials; and writes the audit log.

Read in this order:

* `audit`: the events, as lines of a logger of its own.
* `trust_store`: tokens, certificates and denials, in memory and in the records.
* `denials`: nodes and certificates that may not connect, by an operator's word.
* `authorities`: the CAs themselves, and the end of links when one is taken out.
* `tokens`, `signer`, `generations`: invitations to join; the CA's key; the newest certificate of a node, and copies.
* `admission`: the role and the name that a certificate gives.
* `credentials`: all of these, and whether a peer's certificate counts, at its hello and while its link lives.
* `join_rate`, `issuance`, `join_links`: how often strangers may come; the answers to nodes that join or renew; the
  links of the join listener.
"""
