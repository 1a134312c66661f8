"""The sole uses: which node gets a volume that one node at a time may have mounted, without an attachment.

Kubernetes attaches no volume of a driver with `attachRequired: false`. So nothing keeps a second node's pod from
mounting a volume that the first node, which may be cut off, still writes to. The hub withholds the PersistentVolume
from the closure of the second node, whose agent then cannot mount it. `common.sole_use` has the agent's part.

Rules, in this order:

* A node that lists the volume as in use gets it: nothing is taken from a node that may have it mounted.
* The node that got it last keeps it, while its stream of objects lives and a pod of it wants the volume, or its agent
  may still work with a copy in which a pod does. It may list the volume at any moment.
* While another node lists it, it is withheld. That word is on the hub's disk, so it counts while that node is away, and
  after a restart of the hub. An operator's fence, or the taint out-of-service, ends it, and so does `forget`.
* Kubelets, and agents of earlier versions, list no such volume. While a pod of such a node wants it that is older than
  the pods of the asking node, it is withheld. So no two nodes wait for each other.
* Otherwise the node gets it. A node that is away and does not list it cannot mount it before it is back.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final, NamedTuple, Protocol

from cloud.kinds import pods
from cloud.mounts import Mounts, name_in_use
from cloud.sources.source import Source
from common.objects import Ref
from common.sole_use import is_sole

log = logging.getLogger("csi_bridge.hub.sole_use")

_OVER: Final = frozenset({"Succeeded", "Failed"})


class Closures(Protocol):
    """The nodes' closures (`cloud.sync.closures`)."""

    def is_watched(self, node: str) -> bool:
        """Whether a node's agent gets its closure."""

    def look_again(self, node: str, ref: Ref) -> None:
        """Ask again whether a node gets a PersistentVolume."""


class _Withheld(NamedTuple):
    """A volume that is withheld from a node: its PersistentVolume, the pods that want it there, and the reason."""

    volume: Ref
    node: str
    pods: tuple[Ref, ...]
    why: str

    def __str__(self) -> str:
        return f"volume {self.volume.name} is withheld from node {self.node}: {self.why}"


class _Volume(NamedTuple):
    """A volume in sole use: its name in `volumesInUse`, and its claim."""

    name: str
    claim: tuple[str, str]


class SoleUse:
    """The sole uses of all volumes. `begin` completes it."""

    def __init__(
        self,
        source: Source,
        mounts: Mounts,
        users: Callable[[str], Collection[str]],
        *,
        tell: Callable[[Iterable[Ref], str], None] = lambda _pods, _text: None,
    ) -> None:
        """No node has got a volume yet.

        Args:
            source: the objects.
            mounts: what the nodes are.
            users: the nodes that list a volume as in use.
            tell: called with the pods that wait for a withheld volume, and a sentence. Again when that has changed.
        """
        self._source, self._mounts, self._users, self._tell = source, mounts, users, tell
        self._pods = _PodsOfClaims(source)
        self._has: dict[str, str] = {}
        """The node that got a volume last, by the volume's name."""
        self._withheld: dict[tuple[str, Ref], _Withheld] = {}
        self._absence: Callable[[str], str] = lambda _node: ""
        self._is_given_up: Callable[[str], bool] = lambda _node: False
        self._closures: Closures | None = None
        self._may_use: Callable[[str, Ref], bool] = lambda _node, _ref: True

    def follow(self, closures: Closures, may_use: Callable[[str, Ref], bool]) -> None:
        """Take the closures, and what says whether a node may work with an earlier state that has an object."""
        self._closures, self._may_use = closures, may_use

    def begin(self, absence: Callable[[str], str], is_given_up: Callable[[str], bool]) -> None:
        """Take what says how a node is away, and whether its mounts do not count any more."""
        self._absence, self._is_given_up = absence, is_given_up

    def permit(self, node: str, volume: Ref, is_watched: bool) -> bool:  # noqa: FBT001  # as `closures.Permit`
        """Whether a node gets a PersistentVolume. If its closure is watched, it has it from now on."""
        found = self._volume(volume)
        if found is None:
            return True
        why = self._why_not(node, volume, found)
        if is_watched and not why:
            self._has[found.name] = node
            self._withheld.pop((node, volume), None)
        elif is_watched:
            self._note(_Withheld(volume, node, tuple(sorted(self._wanting(found, node))), why))
        return not why

    def look(self) -> None:
        """Give withheld volumes to nodes that may have them now. Called regularly."""
        for (node, ref), withheld in list(self._withheld.items()):
            volume = self._volume(ref)
            if (node, ref) not in self._withheld:  # a walk that an earlier one has caused gave it to the node
                continue
            if self._closures is None or not self._closures.is_watched(node):
                del self._withheld[node, ref]
            elif volume is None or not (wanting := self._wanting(volume, node)):
                del self._withheld[node, ref]
                self._closures.look_again(node, ref)
            elif why := self._why_not(node, ref, volume):
                self._note(withheld._replace(pods=tuple(sorted(wanting)), why=why))
            else:
                log.info("node %s gets %s now", node, ref)
                self._closures.look_again(node, ref)

    def problems(self) -> Iterator[str]:
        """The withheld volumes, a sentence each."""
        for it in sorted(self._withheld.values()):
            yield str(it)

    def _note(self, withheld: _Withheld) -> None:
        before = self._withheld.get((withheld.node, withheld.volume))
        self._withheld[withheld.node, withheld.volume] = withheld
        if before is None or (before.why, before.pods) != (withheld.why, withheld.pods):
            log.info("%s", withheld)
            self._tell(withheld.pods, str(withheld))

    def _why_not(self, node: str, ref: Ref, volume: _Volume) -> str:
        users = self._users(volume.name)
        if node in users:
            return ""
        if (has := self._has.get(volume.name)) is not None and self._may_mount(has, ref, volume):
            return "" if has == node else _reason(has, "has got it, and may use it", "")
        for user in sorted(users):
            if not self._is_given_up(user):
                absence = self._absence(user)
                return _reason(user, f"used it, and {absence}" if absence else "uses it", absence)
        own = min(map(self._age, self._wanting(volume, node)), default=("",))
        for pod in sorted(self._wanting(volume), key=self._age):
            other = pods.node_of(self._source.body(pod) or {})
            if self._age(pod) < own and self._mounts.is_silent(other) and not self._is_given_up(other):
                return _reason(other, f"may use it for its pod {pod.namespace}/{pod.name}", "")
        return ""

    def _may_mount(self, node: str, ref: Ref, volume: _Volume) -> bool:
        """Whether the node that got a volume may list it as in use at any moment."""
        if self._closures is None or not self._closures.is_watched(node):
            return False
        return bool(self._wanting(volume, node)) or self._may_use(node, ref)

    def _wanting(self, volume: _Volume, node: str = "") -> list[Ref]:
        """The pods that want a volume and have not ended, of one node if one is named."""
        found = []
        for ref in self._pods.of(volume.claim):
            body = self._source.body(ref)
            if body is None or (body.get("status") or {}).get("phase") in _OVER:
                continue
            if not node or pods.node_of(body) == node:
                found.append(ref)
        return found

    def _age(self, pod: Ref) -> tuple[str, ...]:
        """A key by which older pods come first."""
        metadata = (self._source.body(pod) or {}).get("metadata") or {}
        return str(metadata.get("creationTimestamp") or ""), pod.namespace, pod.name

    def _volume(self, ref: Ref) -> _Volume | None:
        """A volume that one node at a time may have; None for any other one."""
        spec = (self._source.body(ref) or {}).get("spec") or {}
        csi, claim = spec.get("csi"), spec.get("claimRef")
        if not csi or not claim:
            return None
        driver = self._source.body(Ref("CSIDriver", "", csi["driver"])) or {}
        attach_required = (driver.get("spec") or {}).get("attachRequired") is not False
        if not is_sole(spec.get("accessModes") or (), attach_required=attach_required):
            return None
        return _Volume(name_in_use(csi["driver"], csi["volumeHandle"]), (claim["namespace"], claim["name"]))


def _reason(node: str, what: str, absence: str) -> str:
    way_out = (
        f"bring it back, or if it is dead: csi-bridge fence {node}, or the taint node.kubernetes.io/out-of-service"
        if absence
        else "delete its pods that use it"
    )
    return f"node {node} {what}; one node at a time may have it (attachRequired: false): {way_out}"


class _PodsOfClaims:
    """The pods of each claim, by namespace and name."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._claims: dict[Ref, list[tuple[str, str]]] = {}
        self._pods: defaultdict[tuple[str, str], set[Ref]] = defaultdict(set)
        self._changed(frozenset(source.refs("Pod")))
        source.subscribe(self._changed)

    def of(self, claim: tuple[str, str]) -> Collection[Ref]:
        """The pods that mount a claim."""
        return self._pods.get(claim, frozenset())

    def _changed(self, refs: frozenset[Ref]) -> None:
        for ref in refs:
            if ref.kind != "Pod":
                continue
            for claim in self._claims.pop(ref, ()):
                self._pods[claim].discard(ref)
                if not self._pods[claim]:
                    del self._pods[claim]
            if (body := self._source.body(ref)) is not None:
                claims = [(ref.namespace, name) for name in pods.claim_names(body)]
                if claims:
                    self._claims[ref] = claims
                for claim in claims:
                    self._pods[claim].add(ref)
