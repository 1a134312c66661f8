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
        passing: whether it is there in some runs and not in others.
    """

    rule: str
    why: str
    scenarios: str
    kind: Kind
    where: str = "*"
    kubelet: str = "*"
    ours: str = "*"
    passing: bool = False

    def concerns(self, scenario: str) -> bool:
        """Whether it may be found in a scenario."""
        return fnmatchcase(scenario, self.scenarios)

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
_NOT_AGAIN = "What was recorded as done before a restart, and is still mounted, is not asked for again."
_FILE_WITHOUT_STAGE = (
    "A driver that does not stage gets its vol_data.json too, and its directory is removed in the end; the kubelet "
    "leaves an empty globalmount behind."
)
_GONE_MEANWHILE = "A pod that went while its volume was staged is not given the volume any more."
_STARTS_ALONE = (
    "An agent that starts works from what it knows, before the hub can be asked: a pod that went while it was dead may "
    "get its volume once more, and loses it when the hub has said so."
)
_HEALTH = "CSI 1.13's NodeGetVolumeHealth is asked where a driver has it; the kubelet does not know it yet."

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
    *(
        Accepted(rule="C13", why=_NOT_AGAIN, scenarios="node-killed-*", kind=Kind.CALL, kubelet=f"{call} OK", ours="")
        for call in ("NodeStageVolume", "NodePublishVolume")
    ),
    *(
        Accepted(rule="C18", why=_FILE_WITHOUT_STAGE, scenarios=scenario, kind=Kind.TREE, kubelet=kubelet, ours=ours)
        for scenario in ("no-stage", "no-attach-no-stage", "secrets-no-stage")
        for kubelet, ours in (
            ("", "plugins/kubernetes.io/csi/DRIVER/HASH(data)/vol_data.json *"),
            ("plugins/kubernetes.io/csi/DRIVER/HASH(data)*", ""),
        )
    ),
    *(
        Accepted(rule="C.7", why=_GONE_MEANWHILE, scenarios=scenario, kind=kind, kubelet=kubelet, ours="")
        for scenario in ("pod-deleted-during-stage", "pod-forced-away-during-stage")
        for kind, kubelet in (
            (Kind.CALL, "NodePublishVolume OK"),
            (Kind.CALL, "NodeUnpublishVolume OK"),
            (Kind.TREE, "pods/UID(a)/volumes/kubernetes.io~csi/PV(data)*"),
        )
    ),
    *(
        Accepted(
            rule="C11",
            why=_STARTS_ALONE,
            scenarios="node-killed-*-pod-gone",
            kind=Kind.CALL,
            kubelet="",
            ours=ours,
            passing=True,
        )
        for ours in ("NodeStageVolume OK", "NodePublishVolume OK", "NodeUnpublishVolume OK")
    ),
    Accepted(
        rule="G",
        why=_HEALTH,
        scenarios="stats",
        kind=Kind.NOTE,
        where="measured",
        kubelet="",
        ours='{"call": "NodeGetVolumeHealth", *"status": "OK"*',
    ),
)


def unwanted(found: Iterable[Difference], *, accepted: Iterable[Accepted] = ACCEPTED) -> list[Difference]:
    """The differences that the table does not cover."""
    known = list(accepted)
    return [difference for difference in found if not any(it.covers(difference) for it in known)]


def rules(scenario: str, found: Iterable[Difference], *, accepted: Iterable[Accepted] = ACCEPTED) -> list[str]:
    """The rules that want what was found in a scenario, and what is found there in some runs, in order."""
    differences = list(found)
    return sorted(
        {it.rule for it in accepted if (it.passing and it.concerns(scenario)) or any(map(it.covers, differences))}
    )


def unseen(found: Iterable[Difference], *, accepted: Iterable[Accepted] = ACCEPTED) -> list[Accepted]:
    """Entries of the table that cover nothing: the kubelet or we have changed."""
    differences = list(found)
    return [it for it in accepted if not any(it.covers(difference) for difference in differences)]
