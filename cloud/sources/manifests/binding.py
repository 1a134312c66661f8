"""The binding: completes the objects of manifests as Kubernetes' controllers would, because none of them runs.

Rules:

* A claim and a volume are bound if one names the other and neither names a third. Size and class do not matter.
* A claim's size is at first its volume's, later the largest one that the manifest or a node has given. It does not
  follow the volume's size: otherwise no node would see that a volume has grown.
* A claim's status comes from the reports of nodes with a pod that uses the claim, about the volume that it is bound to
  now. A Node's labels come from the node itself.
* Changes go into a copy of the written object.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from cloud.kinds import pods
from cloud.kinds.fields import Body
from cloud.kinds.table import KINDS
from cloud.sources.manifests.manifest_objects import Entry, item_of, made_up_uid
from cloud.sources.source import Item
from common.objects import Ref
from common.quantity import parse_bytes

_HOSTNAME: Final = "kubernetes.io/hostname"

CLAIM, VOLUME, POD, NODE = "PersistentVolumeClaim", "PersistentVolume", "Pod", "Node"


@dataclass(frozen=True, slots=True)
class ClaimStatus:
    """A node's report about a claim.

    Attributes:
        node: the reporting node.
        uid: the claim's UID, or empty.
        status: the reported status.
        volume: the volume that the claim was bound to, or empty.
    """

    node: str
    uid: str
    status: Body
    volume: str = ""


@dataclass(frozen=True, slots=True)
class Told:
    """The nodes' reports: about claims, oldest first, and about themselves."""

    claims: Mapping[Ref, tuple[ClaimStatus, ...]] = field(default_factory=dict)
    nodes: Mapping[str, Body] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Bound:
    """The completed objects.

    Attributes:
        items: the objects.
        problems: the problem of each object that has one, as a sentence.
        sizes: the size of each bound claim, by `size_key`.
    """

    items: Mapping[Ref, Item]
    problems: Mapping[str, str]
    sizes: Mapping[str, str]


class Binder:
    """Binds the objects of manifests. It remembers its results, to encode an unchanged object only once."""

    def __init__(self) -> None:
        self._made: dict[Ref, Item] = {}

    def bind(self, entries: Mapping[Ref, Entry], told: Told, sizes: Mapping[str, str]) -> Bound:
        """Complete the objects.

        Args:
            entries: the written objects.
            told: the nodes' reports.
            sizes: the sizes that the last call returned.
        """
        binding = _Binding({ref: entry.item.body for ref, entry in entries.items()}, told, sizes)
        items = {ref: entry.item for ref, entry in entries.items()}
        made = {ref: self._item(ref, body) for ref, body in binding.made()}
        self._made = made
        return Bound({**items, **made}, binding.problems, binding.new_sizes)

    def _item(self, ref: Ref, body: Body) -> Item:
        old = self._made.get(ref)
        return old if old is not None and old.body == body else item_of(body)


def size_key(claim: Body, volume: str) -> str:
    """The key of a claim's size: a claim that is bound to another volume has another size."""
    return f"{claim['metadata']['uid']}/{volume}"


class _Binding:
    """One pass over all objects."""

    def __init__(self, bodies: dict[Ref, Body], told: Told, sizes: Mapping[str, str]) -> None:
        self.problems: dict[str, str] = {}
        self._told, self._sizes = told, sizes
        self._bodies = bodies
        for claim in list(self._ephemeral_claims()):
            bodies.setdefault(_ref(claim), claim)
        uids = {body["metadata"]["uid"] for ref, body in bodies.items() if ref.kind == CLAIM}
        self.new_sizes = {key: size for key, size in sizes.items() if key.split("/")[0] in uids}
        self._volume_of: dict[Ref, Ref] = {}
        """The volume that each claim is bound to."""
        self._claim_of: dict[Ref, Ref] = {}
        self._users = self._claim_users()

    def made(self) -> Iterator[tuple[Ref, Body]]:
        """Every object that is made up, or that differs from the written one."""
        self._bind_by_volume()
        self._bind_by_claim()
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

    def _ephemeral_claims(self) -> Iterator[Body]:
        """The claims of generic ephemeral volumes, as Kubernetes' controller makes them."""
        for ref in self._refs(POD):
            pod = self._bodies[ref]
            for volume in pod["spec"].get("volumes", ()):
                if "ephemeral" in volume:
                    yield _ephemeral_claim(pod, volume)

    def _claim_users(self) -> dict[Ref, set[str]]:
        """The nodes with a pod that uses a claim, by claim."""
        users: dict[Ref, set[str]] = {}
        for ref in self._refs(POD):
            pod = self._bodies[ref]
            for name in pods.claim_names(pod):
                users.setdefault(Ref(CLAIM, ref.namespace, name), set()).add(pods.node_of(pod))
        return users

    # -------------------- claims and volumes --------------------

    def _bind_by_volume(self) -> None:
        """Bind the volumes that name their claim."""
        for volume in self._refs(VOLUME):
            named = self._bodies[volume]["spec"].get("claimRef")
            claim = Ref(CLAIM, named["namespace"], named["name"]) if named else None
            if claim is None or claim not in self._bodies:
                continue
            body = self._bodies[claim]
            wanted = body["spec"].get("volumeName", volume.name)
            if named.get("uid") and named["uid"] != body["metadata"]["uid"]:
                self._problem(volume, f"spec.claimRef.uid is not that of {claim}: they are not bound")
            elif wanted != volume.name:
                self._problem(volume, f"spec.claimRef names {claim}, which names {VOLUME} {wanted}: they are not bound")
            elif claim in self._volume_of:
                self._problem(volume, f"{claim} is bound to {self._volume_of[claim]} already: they are not bound")
            else:
                self._bind(claim, volume)

    def _bind_by_claim(self) -> None:
        """Bind the claims that name a volume without a claim."""
        for claim in self._refs(CLAIM):
            name = self._bodies[claim]["spec"].get("volumeName")
            volume = Ref(VOLUME, "", name or "")
            if claim in self._volume_of or volume not in self._bodies:
                continue
            owner = self._claim_of.get(volume)
            if owner is None and not self._bodies[volume]["spec"].get("claimRef"):
                self._bind(claim, volume)
            elif owner is not None:
                self._problem(claim, f"{volume} is bound to {owner}: the two are not bound")
            elif str(volume) not in self.problems:  # else the volume's problem has the reason
                self._problem(claim, f"{volume} names another claim in spec.claimRef: the two are not bound")

    def _bind(self, claim: Ref, volume: Ref) -> None:
        self._volume_of[claim], self._claim_of[volume] = volume, claim

    def _claim(self, ref: Ref) -> Body:
        claim = self._owned(self._bodies[ref])
        volume = self._volume_of.get(ref)
        if volume is None:
            return _with(claim, status={"phase": "Pending"})
        spec = self._bodies[volume]["spec"]
        told = self._told_of(ref, volume)
        status: dict[str, Any] = {"phase": "Bound", "accessModes": spec["accessModes"]}
        if told:  # without the requested size: the manifest has it, and a node only repeats it
            status |= {name: part for name, part in told[-1].status.items() if name != "allocatedResources"}
        size = self._size(claim, volume, told)
        capacity = {**claim.get("status", {}).get("capacity", {}), **status.get("capacity", {}), "storage": size}
        return _with(claim, spec={"volumeName": volume.name}, status={**status, "capacity": capacity})

    def _owned(self, claim: Body) -> Body:
        """A claim whose owner references to pods have UIDs."""
        owners = claim["metadata"].get("ownerReferences", ())
        if all(owner.get("uid") for owner in owners):
            return claim
        namespace = claim["metadata"]["namespace"]
        filled = [{**owner, "uid": owner.get("uid") or self._uid(owner, namespace)} for owner in owners]
        return _with(claim, metadata={"ownerReferences": filled})

    def _uid(self, owner: Body, namespace: str) -> str:
        body = self._bodies.get(Ref(owner["kind"], namespace, owner["name"]))
        return str(body["metadata"]["uid"]) if body is not None else ""

    def _told_of(self, claim: Ref, volume: Ref) -> list[ClaimStatus]:
        """The reports about a claim and its volume, from nodes that use the claim."""
        uid, users = self._bodies[claim]["metadata"]["uid"], self._users.get(claim, set())
        return [
            told
            for told in self._told.claims.get(claim, ())
            if told.uid in ("", uid) and told.volume in ("", volume.name) and told.node in users
        ]

    def _size(self, claim: Body, volume: Ref, told: list[ClaimStatus]) -> str:
        key = size_key(claim, volume.name)
        written = claim.get("status", {}).get("capacity", {}).get("storage")
        sizes = [self._sizes.get(key), written, *(each.status.get("capacity", {}).get("storage") for each in told)]
        known = [size for size in sizes if size] or [self._bodies[volume]["spec"]["capacity"]["storage"]]
        self.new_sizes[key] = max(known, key=parse_bytes)
        return self.new_sizes[key]

    def _volume(self, ref: Ref) -> Body:
        claim = self._claim_of.get(ref)
        if claim is None:
            return _with(self._bodies[ref], status={"phase": "Available"})
        uid = self._bodies[claim]["metadata"]["uid"]
        named = {"apiVersion": "v1", "kind": CLAIM, "namespace": claim.namespace, "name": claim.name, "uid": uid}
        return _with(self._bodies[ref], spec={"claimRef": named}, status={"phase": "Bound"})

    # -------------------- nodes --------------------

    def _nodes(self) -> list[Ref]:
        """The written Nodes, and the Nodes that pods name."""
        named = {Ref(NODE, "", pods.node_of(self._bodies[ref])) for ref in self._refs(POD)}
        return sorted(named | set(self._refs(NODE)), key=lambda ref: ref.name)

    def _node(self, ref: Ref) -> Body:
        made_up = {"apiVersion": "v1", "kind": NODE, "metadata": {"name": ref.name, "uid": made_up_uid(ref)}}
        body = self._bodies.get(ref, made_up)
        written, told = body["metadata"], self._told.nodes.get(ref.name, {}).get("metadata", {})
        labels = {_HOSTNAME: ref.name, **told.get("labels", {}), **written.get("labels", {})}
        for name, text in told.get("labels", {}).items():
            if labels[name] != text:
                self._problem(
                    ref,
                    f"the node reports another value of the label {name} than its manifest, and the manifest counts",
                )
        annotations = {**written.get("annotations", {}), **told.get("annotations", {})}
        return _with(body, metadata={"labels": labels, **({"annotations": annotations} if annotations else {})})

    def _problem(self, ref: Ref, why: str) -> None:
        self.problems[str(ref)] = f"{ref}: {why}"


def _ephemeral_claim(pod: Body, volume: Body) -> Body:
    metadata, template = pod["metadata"], volume["ephemeral"]["volumeClaimTemplate"]
    owner = {"apiVersion": "v1", "kind": POD, "name": metadata["name"], "uid": metadata["uid"], "controller": True}
    name = pods.ephemeral_claim_name(metadata["name"], volume["name"])
    ref = Ref(CLAIM, metadata["namespace"], name)
    body = {"metadata": {"namespace": ref.namespace, "name": name, "uid": made_up_uid(ref), "ownerReferences": [owner]}}
    rules = KINDS[CLAIM]
    return {"apiVersion": rules.api_version, "kind": CLAIM, **body, **rules.trim({"spec": template["spec"]})}


def _ref(body: Body) -> Ref:
    return Ref(body["kind"], body["metadata"].get("namespace", ""), body["metadata"]["name"])


def _with(body: Body, **parts: Body) -> Body:
    """A copy with further fields in some parts."""
    return {**body, **{name: {**body.get(name, {}), **fields} for name, fields in parts.items()}}
