"""The table of kinds: the rules of every kind in a node's closure."""

from typing import Final

from cloud.kinds import (
    csidrivers,
    nodes,
    persistentvolumeclaims,
    persistentvolumes,
    pods,
    secrets,
    storageclasses,
    tokens,
    volumeattachments,
)

KINDS: Final = {
    rules.kind: rules
    for rules in (
        pods.RULES, persistentvolumeclaims.RULES, persistentvolumes.RULES, volumeattachments.RULES, nodes.RULES,
        csidrivers.RULES, storageclasses.RULES, secrets.RULES, tokens.RULES,
    )
}  # fmt: skip
