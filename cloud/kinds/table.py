"""The kinds: every kind that a node's closure is made of, with its rules."""

from typing import Final

from cloud.kinds import (
    csidrivers,
    nodes,
    persistentvolumeclaims,
    persistentvolumes,
    pods,
    secrets,
    tokens,
    volumeattachments,
)

KINDS: Final = {
    rules.kind: rules
    for rules in (
        pods.RULES, persistentvolumeclaims.RULES, persistentvolumes.RULES, volumeattachments.RULES, nodes.RULES,
        csidrivers.RULES, secrets.RULES, tokens.RULES,
    )
}  # fmt: skip
