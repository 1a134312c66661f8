"""The differences from the kubelet that we want, in one table: where, what, and which rule of the contract wants it."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from tests.peers.kubelet.comparer import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.peers.kubelet.comparer import Difference


@dataclass(frozen=True, kw_only=True)
class Accepted:
    """One kind of difference that is wanted.

    Attributes:
        rule: of the contract, such as `C17`.
        why: a sentence for the reader of the parity table.
        scenarios: a pattern of their names.
        kind: of the difference.
        where: a pattern of the place.
        kubelet: a pattern of what the kubelet has.
        ours: a pattern of what we have.
    """

    rule: str
    why: str
    scenarios: str
    kind: Kind
    where: str = "*"
    kubelet: str = "*"
    ours: str = "*"

    def covers(self, difference: Difference) -> bool:
        """Whether a difference is one of these."""
        return self.kind == difference.kind and all(
            fnmatchcase(text, pattern.replace("[", "[[]"))
            for text, pattern in (
                (difference.scenario, self.scenarios),
                (difference.where, self.where),
                (difference.kubelet, self.kubelet),
                (difference.ours, self.ours),
            )
        )


_STAGED_WITHOUT_POD = "A volume that is staged for no pod is found by its vol_data.json, and unstaged."
_FORGOTTEN_FILES = "What a failed volume leaves is removed with it."
_KEEPS_REGISTRATION = "A registration that goes is kept for a while: most drivers come back."

ACCEPTED: tuple[Accepted, ...] = (
    *(
        Accepted(rule="C17", why=_STAGED_WITHOUT_POD, scenarios=scenario, kind=kind, kubelet=kubelet, ours=ours)
        for scenario in ("node-killed-after-stage-pod-gone", "node-killed-*-unstage")
        for kind, kubelet, ours in (
            (Kind.CALL, "", "NodeUnstageVolume OK"),
            (Kind.TREE, "plugins/kubernetes.io/csi/DRIVER/HASH(data)*", ""),
        )
    ),
    Accepted(
        rule="C18",
        why=_FORGOTTEN_FILES,
        scenarios="block-stage-*-pod-deleted",
        kind=Kind.TREE,
        kubelet="plugins/kubernetes.io/csi/volumeDevices/*",
        ours="",
    ),
    Accepted(
        rule="C4", why=_KEEPS_REGISTRATION, scenarios="registration", kind=Kind.NOTE, where="notes: unregistered*"
    ),
)


def unwanted(found: Iterable[Difference], *, accepted: Iterable[Accepted] = ACCEPTED) -> list[Difference]:
    """The differences that the table does not cover."""
    known = list(accepted)
    return [difference for difference in found if not any(it.covers(difference) for it in known)]


def rules(found: Iterable[Difference], *, accepted: Iterable[Accepted] = ACCEPTED) -> list[str]:
    """The rules that want the covered ones, in order."""
    known, differences = list(accepted), list(found)
    return sorted({it.rule for it in known for difference in differences if it.covers(difference)})


def unseen(found: Iterable[Difference], *, accepted: Iterable[Accepted] = ACCEPTED) -> list[Accepted]:
    """Entries of the table that cover nothing: the kubelet or we have changed."""
    differences = list(found)
    return [it for it in accepted if not any(it.covers(difference) for difference in differences)]
