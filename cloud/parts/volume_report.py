"""The volume report: the edge nodes' volumes with their nodes and states, as far as the hub knows.

A volume has one entry for each node that uses it, or one entry without a node:

    mounted     A pod on the node has it.
    attached    It is attached to the node, and mounted in no pod there.
    error       Attaching, detaching or mounting it fails; `error` has the reason.
    unknown     A pod on the node wants it, and the node has not told whether it is mounted.
    waiting     A pod on the node wants it.
    (a phase)   Unused, with the phase of its PersistentVolume: `available`, `bound`, `released`, `failed`.
    known       Unused, and its phase is unknown; or the hub has not read all PersistentVolumes yet.
    no PV       The hub placed it, or a node listed it, and it has no PersistentVolume (yet, or any more).
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cloud.detach.mounts import present_claim
from cloud.kinds import pods, volumeattachments
from cloud.kinds.persistentvolumes import node_terms
from cloud.kinds.rules.fields import Body, condition_of, part
from cloud.nodes.unique_segments import HOSTNAME
from cloud.sources.source import Source
from cloud.sync.fact_kinds import Fact, name_in_use
from cloud.sync.fact_table import FactTable
from common.objects.node_selector import choices, selects
from common.objects.pod_fact import MOUNTED, UNMOUNTED, ToldVolume, VolumeState, read_volumes, shorten
from common.objects.topology import NODE_SEGMENT
from common.pages.hub import VolumeStatus

# By the name of the driver and the handle of the volume: the nodes that have it according to the placement.
Placed = Mapping[tuple[str, str], Sequence[str]]

_ERROR_CHARS = 1_000
_POD = "Pod"
_VOLUME = "PersistentVolume"
_ATTACHMENT = "VolumeAttachment"
_NODE = "Node"


@dataclass(slots=True)
class _VolumeUse:
    pods: list[str] = field(default_factory=list)
    mounted: bool = False
    unknown: bool = False
    untold: bool = False  # A pod's node has not told of the pod
    attached: bool = False
    error: str = ""  # the first one

    def blame(self, error: str) -> None:
        self.error = self.error or shorten(error, _ERROR_CHARS)


def report_placed(placed: Placed, *, state: str = "known") -> Iterator[VolumeStatus]:
    """The entries of all volumes that the placement knows, for a hub that knows no objects."""
    for (driver, handle), nodes in sorted(placed.items()):
        yield from _unused(_volume(handle, driver), nodes, state)


def report(source: Source, facts: FactTable, placed: Placed) -> Iterator[VolumeStatus]:
    """The entries of all PersistentVolumes of CSI drivers by name, then of volumes without a PersistentVolume.

    `placed` gives the nodes of volumes that are unused.
    """
    uses = _uses(source, facts)
    nodes = _Nodes(source)
    without = dict(placed)
    for ref in sorted(source.refs(_VOLUME), key=lambda ref: ref.name):
        body = source.body(ref)
        if body is None or not (csi := body["spec"].get("csi")):
            continue
        key = (csi["driver"], csi["volumeHandle"])
        without.pop(key, None)
        claim = body["spec"].get("claimRef") or {}
        claim_name = f"{claim['namespace']}/{claim['name']}" if claim else ""
        volume = _volume(csi["volumeHandle"], csi["driver"], ref.name, claim_name)
        users = facts.nodes_using(name_in_use(*key))
        for node, use in sorted(uses.get(ref.name, {}).items()):
            use.unknown |= use.untold and node in users  # it is away since the hub's start
            yield replace(volume, node=node, state=_state(use), pods=sorted(use.pods), error=use.error)
        if ref.name not in uses:
            phase = str(part(body, "status").get("phase") or "known").lower()
            yield from _unused(volume, placed.get(key) or [nodes.named_by(body)], phase)
    yield from report_placed(without, state="no PV" if source.is_ready else "known")


def _volume(handle: str, driver: str, pv: str = "", claim: str = "") -> VolumeStatus:
    return VolumeStatus(volume=handle, driver=driver, pv=pv, claim=claim, node="", state="", pods=[], error="")


def _unused(volume: VolumeStatus, nodes: Iterable[str], state: str) -> Iterator[VolumeStatus]:
    for node in nodes:
        yield replace(volume, node=node, state=state)


def _state(use: _VolumeUse) -> str:
    if use.mounted:
        return "mounted"
    if use.unknown:
        return "unknown"
    if use.error:
        return "error"
    return "attached" if use.attached else "waiting"


def _uses(source: Source, facts: FactTable) -> Mapping[str, Mapping[str, _VolumeUse]]:
    found: defaultdict[str, defaultdict[str, _VolumeUse]] = defaultdict(lambda: defaultdict(_VolumeUse))
    volumes: dict[tuple[str, str], list[str]] = {}  # by claim
    for ref in source.refs(_VOLUME):
        if used_by := present_claim(source, source.body(ref) or {}):
            volumes.setdefault((used_by["namespace"], used_by["name"]), []).append(ref.name)
    for ref in source.refs(_POD):
        if (pod := source.body(ref)) is None or pods.has_ended(pod) or not (claims := _claims(pod)):
            continue
        node = pods.node_of(pod)
        fact = facts.of(node).get(ref)
        told, others = _told(pod, fact)
        for name, claim in claims.items():
            its = told.get(name, others)
            for volume in volumes.get((ref.namespace, claim), ()):
                use = found[volume][node]
                use.pods.append(f"{ref.namespace}/{ref.name}")
                use.mounted |= its.state is VolumeState.MOUNTED
                use.unknown |= its.state is VolumeState.UNKNOWN
                use.untold |= fact is None
                use.blame("" if its.state is VolumeState.MOUNTED else its.reason)
    for ref in source.refs(_ATTACHMENT):
        if (body := source.body(ref)) is None or not (volume := volumeattachments.volume_of(body)):
            continue
        use = found[volume][volumeattachments.node_of(body)]
        status = body.get("status") or {}
        use.attached |= status.get("attached") is True
        for what, name in (("not attached", "attachError"), ("not detached", "detachError")):
            if message := (status.get(name) or {}).get("message"):
                use.blame(f"{what}: {message}")
    return found


def _claims(pod: Body) -> dict[str, str]:
    volumes = [it for it in pod["spec"].get("volumes", ()) if "persistentVolumeClaim" in it or "ephemeral" in it]
    return dict(zip((it["name"] for it in volumes), pods.claim_names(pod), strict=True))


def _told(pod: Body, fact: Fact | None) -> tuple[Mapping[str, ToldVolume], ToldVolume]:
    if fact is None or fact.body.get("metadata", {}).get("uid") != pod["metadata"].get("uid"):
        running = part(pod, "status").get("phase") == "Running"  # a kubelet starts no container without them
        return {}, ToldVolume("", VolumeState.MOUNTED if running else VolumeState.WAITING)
    waiting = ToldVolume("", VolumeState.WAITING)
    if (told := read_volumes(fact.body["status"])) is not None:
        return told, told.get("", waiting)
    mounted = condition_of(fact.body["status"], MOUNTED)  # of all: the list did not fit into the fact
    if mounted.get("status") == "True":
        return {}, ToldVolume("", VolumeState.MOUNTED)
    if mounted.get("reason") == UNMOUNTED:
        return {}, waiting
    return {}, ToldVolume("", VolumeState.UNKNOWN, str(mounted.get("message") or ""))


class _Nodes:
    """Finds nodes by name and by label. A node without a Node object has only its name, also as its `HOSTNAME`."""

    def __init__(self, source: Source) -> None:
        bodies = {ref.name: source.body(ref) or {} for ref in source.refs(_NODE)}
        self._labels = {name: body.get("metadata", {}).get("labels") or {} for name, body in bodies.items()}
        # The nodes by key and value of a label, for each key that was needed.
        self._by_label: dict[str, dict[str, set[str]]] = {}

    def named_by(self, volume: Body) -> str:
        """The node that a volume's affinity allows; empty if it allows none or several."""
        found = {
            name
            for term in node_terms(volume)
            for name in self._candidates(term)
            if selects([term], self._labels_of(name), name)
        }
        return found.pop() if len(found) == 1 else ""

    def _candidates(self, term: Mapping[str, Any]) -> Iterable[str]:
        narrowed = [{name for value in values for name in self._with(key, value)} for key, values in choices(term)]
        return min(narrowed, key=len, default=self._labels.keys())

    def _labels_of(self, name: str) -> Mapping[str, str]:
        return {NODE_SEGMENT: name, **self._labels.get(name, {HOSTNAME: name})}

    def _with(self, key: str, value: str) -> Iterable[str]:
        if key not in self._by_label:
            known = self._by_label[key] = defaultdict[str, set[str]](set)
            for name, labels in self._labels.items():
                if key in labels:
                    known[labels[key]].add(name)
        found = self._by_label[key].get(value, set())
        named = key == NODE_SEGMENT or (key == HOSTNAME and value not in self._labels)
        return found or ([value] if named else [])
