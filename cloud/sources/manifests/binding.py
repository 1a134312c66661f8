"""The binding: completes the objects of manifests as Kubernetes' controllers would, because none of them runs.

Rules:

* A claim and a volume are bound if one names the other (`volumeName`, `claimRef`), neither names a third, and they
  match (`matching`) or both name each other. Then each claim that names no volume gets the best one that matches.
* A pair that was bound stays bound (`pairs`), even if it matches no more, until one of the two names a third. A claim
  that has lost its volume gets another one only by name, and so does a volume that has lost its claim.
* A class with `volumeBindingMode: WaitForFirstConsumer` binds a claim once pods use it, to a volume for their nodes.
* A claim's size is the largest one that its manifest's status or a node has given, else the requested size. It does not
  follow the volume's size: otherwise no node would see that a volume has grown.
* A claim's status comes from the reports of nodes with a pod that uses the claim, about the volume that it is bound to
  now. A Node's labels come from the node itself.
* Changes go into a copy of the written object.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from cloud.kinds import pods
from cloud.kinds.rules.fields import Body
from cloud.sources.manifests import matching
from cloud.sources.manifests.manifest_objects import Entry, item_of, made_up_uid
from cloud.sources.manifests.pairs import Pairs
from cloud.sources.source import Item
from common.objects.node_selector import selects
from common.objects.objects import Ref
from common.objects.quantity import parse_bytes

_HOSTNAME: Final = "kubernetes.io/hostname"

CLAIM = "PersistentVolumeClaim"
VOLUME = "PersistentVolume"
POD = "Pod"
NODE = "Node"


@dataclass(frozen=True, slots=True)
class ClaimStatus:
    """A node's report about a claim."""

    node: str
    uid: str  # the claim's UID, or empty
    status: Body
    volume: str = ""  # the volume that the claim was bound to, or empty


@dataclass(frozen=True, slots=True)
class NodeReports:
    """The nodes' reports: about claims, oldest first, and about themselves."""

    claims: Mapping[Ref, tuple[ClaimStatus, ...]] = field(default_factory=dict)
    nodes: Mapping[str, Body] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Bound:
    """The completed objects."""

    items: Mapping[Ref, Item] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)  # of each object that has one, as a sentence
    pairs: Pairs = field(default_factory=Pairs)  # the claims and volumes that are bound


def bind(entries: Mapping[Ref, Entry], told: NodeReports, last: Bound) -> Bound:
    """Complete the objects of manifests. Pairs of the last result stay bound. It encodes changed objects only."""
    binding = _Binding({ref: entry.item.body for ref, entry in entries.items()}, told, last.pairs)
    items = {ref: entry.item for ref, entry in entries.items()}
    for ref, body in binding.made():
        old = last.items.get(ref)
        items[ref] = old if old is not None and old.body == body else item_of(body)
    return Bound(items, binding.problems, binding.pairs())


class _Binding:
    def __init__(self, bodies: Mapping[Ref, Body], told: NodeReports, kept: Pairs) -> None:
        self.problems: dict[str, str] = {}
        self._told = told
        self._bodies = bodies
        self._kept = kept
        self._volume_of: dict[Ref, Ref] = {}  # the volume that each claim is bound to
        self._claim_of: dict[Ref, Ref] = {}
        self._users = self._claim_users()

    def made(self) -> Iterator[tuple[Ref, Body]]:
        self._bind()
        for ref in self._refs(CLAIM):
            yield ref, self._claim(ref)
        for ref in self._refs(VOLUME):
            yield ref, self._volume(ref)
        for ref in self._refs(POD):
            if "serviceAccountName" not in self._bodies[ref]["spec"]:
                yield ref, _with(self._bodies[ref], spec={"serviceAccountName": "default"})
        for ref in self._nodes():
            yield ref, self._node(ref)

    def _refs(self, kind: str) -> list[Ref]:
        return sorted((ref for ref in self._bodies if ref.kind == kind), key=lambda ref: (ref.namespace, ref.name))

    def _claim_users(self) -> dict[Ref, set[str]]:
        users: dict[Ref, set[str]] = {}
        for ref in self._refs(POD):
            pod = self._bodies[ref]
            for name in pods.claim_names(pod):
                users.setdefault(Ref(CLAIM, ref.namespace, name), set()).add(pods.node_of(pod))
        return users

    # -------------------- claims and volumes --------------------

    def pairs(self) -> Pairs:
        """The claims and volumes that are bound now, and the earlier ones of which one is still written."""
        claims, volumes = (set(map(self._key, self._refs(kind))) for kind in (CLAIM, VOLUME))
        bound = {self._key(claim): self._key(volume) for claim, volume in self._volume_of.items()}
        volume_of = {claim: it for claim, it in self._kept.volume_of.items() if claim in claims}
        claim_of = {volume: it for volume, it in self._kept.claim_of.items() if volume in volumes}
        return Pairs({**volume_of, **bound}, {**claim_of, **{volume: claim for claim, volume in bound.items()}})

    def _bind(self) -> None:
        for claim, volume in self._kept_pairs():
            if not self._obstacle(claim, volume):
                self._pair(claim, volume)
        for claim, volume in self._named():
            if self._volume_of.get(claim) == volume:
                continue
            if why := self._obstacle(claim, volume) or self._mismatch(claim, volume):
                self.problems[f"{claim} {volume}"] = f"{claim} and {volume} are not bound: {why}"
            else:
                self._pair(claim, volume)
        free: dict[str, list[Ref]] = {}  # by class, the best first
        for volume in sorted(filter(self._is_free, self._refs(VOLUME)), key=lambda it: matching.rank(self._bodies[it])):
            free.setdefault(matching.class_of(self._bodies[volume]), []).append(volume)
        for claim in self._refs(CLAIM):
            if claim in self._volume_of or self._bodies[claim]["spec"].get("volumeName"):
                continue
            if self._is_lost(claim):
                lost = self._kept.volume_of[self._key(claim)].split("/")[0]
                self.problems[str(claim)] = (
                    f"{claim} has lost PersistentVolume {lost}, which is gone or names another claim: write the volume "
                    "again, or name another one by spec.volumeName of the claim"
                )
                continue
            of_class = free.get(matching.class_of(self._bodies[claim]), [])
            if (best := next((it for it in of_class if self._may_have(claim, it)), None)) is not None:
                self._pair(claim, best)
                of_class.remove(best)

    # A pair is a claim and a volume.

    def _kept_pairs(self) -> list[tuple[Ref, Ref]]:
        refs = {self._key(ref): ref for kind in (CLAIM, VOLUME) for ref in self._refs(kind)}
        volume_of = self._kept.volume_of
        claim_of = self._kept.claim_of
        pairs = {*volume_of.items(), *((claim, volume) for volume, claim in claim_of.items())}
        last = [it for it in sorted(pairs) if (volume_of.get(it[0], it[1]), claim_of.get(it[1], it[0])) == it[::-1]]
        return [(refs[claim], refs[volume]) for claim, volume in last if refs.keys() >= {claim, volume}]

    def _is_free(self, volume: Ref) -> bool:
        is_taken = volume in self._claim_of or self._key(volume) in self._kept.claim_of
        return not (is_taken or self._bodies[volume]["spec"].get("claimRef"))

    def _key(self, ref: Ref) -> str:
        names = (ref.namespace, ref.name) if ref.namespace else (ref.name,)
        return "/".join((*names, self._bodies[ref]["metadata"]["uid"]))

    def _pair(self, claim: Ref, volume: Ref) -> None:
        self._volume_of[claim], self._claim_of[volume] = volume, claim

    def _named(self) -> list[tuple[Ref, Ref]]:
        pairs = set()
        for volume in self._refs(VOLUME):
            if named := self._bodies[volume]["spec"].get("claimRef"):
                pairs.add((Ref(CLAIM, named["namespace"], named["name"]), volume))
        for claim in self._refs(CLAIM):
            if name := self._bodies[claim]["spec"].get("volumeName"):
                pairs.add((claim, Ref(VOLUME, "", name)))
        written = [pair for pair in pairs if self._bodies.keys() >= set(pair)]
        return sorted(written, key=lambda pair: (pair[0].namespace, pair[0].name, pair[1].name))

    def _mismatch(self, claim: Ref, volume: Ref) -> str:
        wanted = self._bodies[claim]
        given = self._bodies[volume]
        names_claim = bool(given["spec"].get("claimRef"))
        if names_claim and wanted["spec"].get("volumeName"):
            return ""  # both name each other, and their author knows why
        return matching.mismatch(wanted, given, any_class=names_claim)

    def _is_lost(self, claim: Ref) -> bool:
        return claim not in self._volume_of and self._key(claim) in self._kept.volume_of

    def _may_have(self, claim: Ref, volume: Ref) -> bool:
        wanted = self._bodies[claim]
        given = self._bodies[volume]
        is_match = not matching.mismatch(wanted, given) and matching.is_selected(wanted, given)
        return is_match and self._fits_users(claim, given)

    def _fits_users(self, claim: Ref, volume: Body) -> bool:
        storage_class = self._bodies.get(Ref("StorageClass", "", matching.class_of(self._bodies[claim])), {})
        if storage_class.get("volumeBindingMode") != "WaitForFirstConsumer":
            return True
        users = {name: self._node(Ref(NODE, "", name)) for name in self._users.get(claim, ())}
        required = (volume["spec"].get("nodeAffinity") or {}).get("required")
        terms = required["nodeSelectorTerms"] if required else None
        fits = (terms is None or selects(terms, it["metadata"]["labels"], name) for name, it in users.items())
        return bool(users) and all(fits)

    def _obstacle(self, claim: Ref, volume: Ref) -> str:
        body = self._bodies[claim]
        named = self._bodies[volume]["spec"].get("claimRef")
        if named and (named["namespace"], named["name"]) != (claim.namespace, claim.name):
            return "spec.claimRef names another claim"
        if named and named.get("uid") not in (None, "", body["metadata"]["uid"]):
            return "spec.claimRef.uid is not that of the claim"
        if body["spec"].get("volumeName", volume.name) != volume.name:
            return "spec.volumeName names another volume"
        if claim in self._volume_of or volume in self._claim_of:
            return f"{self._volume_of.get(claim) or self._claim_of[volume]} came first"
        return ""

    def _claim(self, ref: Ref) -> Body:
        claim = self._bodies[ref]
        volume = self._volume_of.get(ref)
        if volume is None:
            return _with(claim, status={"phase": "Lost" if self._is_lost(ref) else "Pending"})
        told = self._told_of(ref, volume)
        status: dict[str, Any] = {"phase": "Bound", "accessModes": self._bodies[volume]["spec"]["accessModes"]}
        if told:  # without the requested size: the manifest has it, and a node only repeats it
            status |= {name: part for name, part in told[-1].status.items() if name != "allocatedResources"}
        size = self._size(claim, volume, told)
        capacity = {**claim.get("status", {}).get("capacity", {}), **status.get("capacity", {}), "storage": size}
        return _with(claim, spec={"volumeName": volume.name}, status={**status, "capacity": capacity})

    def _told_of(self, claim: Ref, volume: Ref) -> list[ClaimStatus]:
        uid = self._bodies[claim]["metadata"]["uid"]
        users = self._users.get(claim, set())
        return [
            told
            for told in self._told.claims.get(claim, ())
            if told.uid in ("", uid) and told.volume in ("", volume.name) and told.node in users
        ]

    def _size(self, claim: Body, volume: Ref, told: list[ClaimStatus]) -> str:
        statuses = [claim.get("status", {}), *(each.status for each in told)]
        known: list[str] = [size for status in statuses if (size := status.get("capacity", {}).get("storage"))]
        capacity = self._bodies[volume]["spec"]["capacity"]["storage"]
        return max(known, key=parse_bytes) if known else matching.requested(claim) or str(capacity)

    def _volume(self, ref: Ref) -> Body:
        claim = self._claim_of.get(ref)
        if claim is None:
            phase = "Released" if self._key(ref) in self._kept.claim_of else "Available"
            return _with(self._bodies[ref], status={"phase": phase})
        uid = self._bodies[claim]["metadata"]["uid"]
        named = {"apiVersion": "v1", "kind": CLAIM, "namespace": claim.namespace, "name": claim.name, "uid": uid}
        return _with(self._bodies[ref], spec={"claimRef": named}, status={"phase": "Bound"})

    # -------------------- nodes --------------------

    def _nodes(self) -> list[Ref]:
        named = {Ref(NODE, "", pods.node_of(self._bodies[ref])) for ref in self._refs(POD)}
        return sorted(named | set(self._refs(NODE)), key=lambda ref: ref.name)

    def _node(self, ref: Ref) -> Body:
        made_up = {"apiVersion": "v1", "kind": NODE, "metadata": {"name": ref.name, "uid": made_up_uid(ref)}}
        body = self._bodies.get(ref, made_up)
        written = body["metadata"]
        told = self._told.nodes.get(ref.name, {}).get("metadata", {})
        labels = {**told.get("labels", {}), _HOSTNAME: ref.name, **written.get("labels", {})}
        annotations = {**written.get("annotations", {}), **told.get("annotations", {})}
        return _with(body, metadata={"labels": labels, **({"annotations": annotations} if annotations else {})})


def _with(body: Body, **parts: Body) -> Body:
    return {**body, **{name: {**body.get(name, {}), **fields} for name, fields in parts.items()}}
