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

_MODULES: Final = (
    pods, persistentvolumeclaims, persistentvolumes, volumeattachments, nodes, csidrivers, storageclasses, secrets,
    tokens,
)  # fmt: skip
KINDS: Final = {it.RULES.kind: it.RULES for it in _MODULES}
