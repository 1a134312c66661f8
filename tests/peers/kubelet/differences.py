"""The differences from the kubelet that we want, in one table: where each is found, and the rule that wants it."""

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from tests.peers.kubelet.comparer import Difference, Kind


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Why the agent differs from the kubelet, for the reader of the parity page."""

    name: str  # a few words
    kubelet: str  # the kubelet's behaviour, as a sentence without its full stop
    source: str  # where the kubelet's or CSI's sources say so
    why: str  # the agent's behaviour and its reason, as sentences


@dataclass(frozen=True, kw_only=True)
class Accepted:
    """One kind of difference that is wanted."""

    rule: Rule  # the rule that wants it
    scenarios: str  # a pattern of their names
    kind: Kind  # of the difference
    where: str = "*"  # a pattern of the place
    kubelet: str = "*"  # a pattern of what the kubelet has
    ours: str = "*"  # a pattern of what we have
    passing: bool = False  # whether it is there in some runs and not in others

    def concerns(self, scenario: str) -> bool:
        return fnmatchcase(scenario, self.scenarios)

    def covers(self, difference: Difference) -> bool:
        return self.kind == difference.kind and all(
            fnmatchcase(text, pattern.replace("[", "[[]"))
            for text, pattern in (
                (difference.scenario, self.scenarios),
                (difference.where, self.where),
                (difference.kubelet, self.kubelet),
                (difference.ours, self.ours),
            )
        )


_STAGED_WITHOUT_POD = Rule(
    name="staged without a pod",
    kubelet="After a restart it looks for volumes only in pods' directories, and leaves other staged volumes mounted",
    source="`pkg/kubelet/volumemanager/reconciler/reconstruct.go`",
    why="It also finds staged volumes by their vol_data.json, and unstages those that no pod uses. A staged volume "
    "cannot be detached safely.",
)
_FAILED_BLOCK = Rule(
    name="failed block volume",
    kubelet="If staging a raw block volume fails and the pod is deleted, it leaves the volume's directories behind",
    source="`pkg/volume/csi/csi_block.go`",
    why="It removes them.",
)
_KEEPS_REGISTRATION = Rule(
    name="registration grace",
    kubelet="It removes a driver from CSINode as soon as the registration socket is gone",
    source="`pkg/volume/csi/csi_plugin.go`",
    why="It keeps the entry for two minutes, because most drivers come back. csi-attacher and csi-provisioner need "
    "the entry.",
)
_NOT_AGAIN = Rule(
    name="done steps",
    kubelet="After a restart it stages and publishes every volume that it finds again",
    source="`pkg/kubelet/volumemanager/reconciler/reconstruct.go`",
    why="It records each step before and after the call, and does not repeat a finished step whose mount is still "
    "there.",
)
_FILE_WITHOUT_STAGE = Rule(
    name="driver without staging",
    kubelet="It leaves an empty globalmount directory behind",
    source="`pkg/volume/csi/csi_attacher.go`",
    why="It also writes a vol_data.json there. After the last unpublish it removes both.",
)
_GONE_MEANWHILE = Rule(
    name="pod gone during staging",
    kubelet="It stages and publishes in one operation, so it also publishes to a pod that is gone",
    source="`pkg/volume/util/operationexecutor/operation_generator.go`",
    why="After staging it checks that the pod still exists before it publishes.",
)
_STARTS_ALONE = Rule(
    name="start without the hub",
    kubelet="After a restart it waits until the API server has sent the pods",
    source="`pkg/kubelet/volumemanager/reconciler/reconciler.go`",
    why="It starts from its own copy of the pods, because the hub may be away. It may publish again for a pod that "
    "was deleted meanwhile, and unpublishes when the hub reports that.",
)
_HEALTH = Rule(
    name="volume health",
    kubelet="It does not call NodeGetVolumeHealth",
    source="CSI 1.13, csi.proto",
    why="It calls it if the driver has the capability.",
)

ACCEPTED: tuple[Accepted, ...] = (
    *(
        Accepted(rule=_STAGED_WITHOUT_POD, scenarios=scenario, kind=kind, kubelet=kubelet, ours=ours)
        for scenario in ("node-killed-after-stage-pod-gone", "node-killed-*-unstage")
        for kind, kubelet, ours in (
            (Kind.CALL, "", "NodeUnstageVolume OK"),
            (Kind.TREE, "plugins/kubernetes.io/csi/DRIVER/HASH(data)*", ""),
        )
    ),
    Accepted(
        rule=_FAILED_BLOCK,
        scenarios="block-stage-*-pod-deleted",
        kind=Kind.TREE,
        kubelet="plugins/kubernetes.io/csi/volumeDevices/*",
        ours="",
    ),
    Accepted(rule=_KEEPS_REGISTRATION, scenarios="registration", kind=Kind.NOTE, where="notes: unregistered*"),
    *(
        Accepted(rule=_NOT_AGAIN, scenarios="node-killed-*", kind=Kind.CALL, kubelet=f"{call} OK", ours="")
        for call in ("NodeStageVolume", "NodePublishVolume")
    ),
    *(
        Accepted(rule=_FILE_WITHOUT_STAGE, scenarios=scenario, kind=Kind.TREE, kubelet=kubelet, ours=ours)
        for scenario in ("no-stage", "no-attach-no-stage", "secrets-no-stage")
        for kubelet, ours in (
            ("", "plugins/kubernetes.io/csi/DRIVER/HASH(data)/vol_data.json *"),
            ("plugins/kubernetes.io/csi/DRIVER/HASH(data)*", ""),
        )
    ),
    *(
        Accepted(rule=_GONE_MEANWHILE, scenarios=scenario, kind=kind, kubelet=kubelet, ours="")
        for scenario in ("pod-deleted-during-stage", "pod-forced-away-during-stage")
        for kind, kubelet in (
            (Kind.CALL, "NodePublishVolume OK"),
            (Kind.CALL, "NodeUnpublishVolume OK"),
            (Kind.TREE, "pods/UID(a)/volumes/kubernetes.io~csi/PV(data)*"),
        )
    ),
    *(
        Accepted(
            rule=_STARTS_ALONE,
            scenarios="node-killed-*-pod-gone",
            kind=Kind.CALL,
            kubelet="",
            ours=ours,
            passing=True,
        )
        for ours in ("NodeStageVolume OK", "NodePublishVolume OK", "NodeUnpublishVolume OK")
    ),
    Accepted(
        rule=_HEALTH,
        scenarios="stats",
        kind=Kind.NOTE,
        where="measured",
        kubelet="",
        ours='{"call": "NodeGetVolumeHealth", *"status": "OK"*',
    ),
)


def unwanted(found: Iterable[Difference]) -> list[Difference]:
    return [difference for difference in found if not any(it.covers(difference) for it in ACCEPTED)]


def rules(scenario: str, found: Iterable[Difference]) -> list[str]:
    """The names of the rules that want what was found in a scenario, or is found there in some runs, in order."""
    differences = list(found)
    return sorted(
        {it.rule.name for it in ACCEPTED if (it.passing and it.concerns(scenario)) or any(map(it.covers, differences))}
    )


def unseen(found: Iterable[Difference]) -> list[Accepted]:
    """Entries of the table that cover nothing: the kubelet or we have changed."""
    differences = list(found)
    return [it for it in ACCEPTED if not any(map(it.covers, differences))]
