"""The closures: for each node the set of objects that concern it, and no others.

    Node ── the node's own
    Pod with spec.nodeName
     ├── ServiceAccountToken                     if a CSIDriver of its volumes requests one
     ├── CSIDriver, Secret                       of its inline volumes
     └── PersistentVolumeClaim
          └── PersistentVolume                   if it names the claim as well
               ├── CSIDriver, StorageClass
               ├── Secrets                       for node calls
               └── VolumeAttachments             of this node

Rules:

* A closure is found by a walk from each pod of the node to the objects that the pod needs. The closure remembers every
  object that a walk looked up, existing or not. When such an object is made, changed or deleted, the closure repeats
  only the walks that looked it up, or none for a leaf (`_LEAVES`).
* A source may provide some objects only on demand. `Closures` tells the source when the first closure looks an object
  up (`use`), and when the last one no longer does (`release`).
* `Closures` keeps the closure of a node while somebody watches it. For any other node it makes a closure for one
  answer, and does not ask the source for objects.
* `Closures` remembers the last pods and claims that have left a watched closure: their nodes may still tell of them.
* An agent beside a kubelet gets no credentials: its closure has no object of `_CREDENTIALS`, and looks none up.
* One change may concern every node. In each turn of the event loop, `Closures` brings the closures of a few nodes up to
  date and calls their watchers. A query brings the closure of its node up to date first.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain

from cloud.kinds import pods, volumeattachments
from cloud.kinds.persistentvolumes import is_claimed_by
from cloud.kinds.rules.fields import Body
from cloud.kinds.table import KINDS
from cloud.kinds.tokens import TokenRequest, request_of
from cloud.nodes.node_rights import NodeRights
from cloud.sources.index import Index, discard
from cloud.sources.source import Source
from common.objects.objects import Object, Ref, Stamp, encode_body

# Kinds that need no other object: a change changes only the object's own stamp in a closure.
_LEAVES = frozenset({"Node", "Secret", "ServiceAccountToken", "StorageClass"})

# A VolumeAttachment's metadata is the publish context, which may hold some.
_CREDENTIALS = frozenset({"Secret", "ServiceAccountToken", "VolumeAttachment"})

_TOLD_OF = frozenset({"Pod", "PersistentVolumeClaim"})  # the kinds in a closure that a node tells facts about

_MOST_PAST = 1_000  # the objects of one node that are remembered after they have left its closure

# The nodes whose closures are brought up to date in one turn of the loop: some 5 ms, with a few pods on each.
NODES_A_TURN = 20

log = logging.getLogger("csi_bridge.hub.closures")


class Closures:
    """Finds each node's closure in the objects of one source, and tells watchers of changes."""

    def __init__(self, source: Source, rights: NodeRights) -> None:
        self._source = source
        self._rights = rights
        # Of each node, and of each node and PersistentVolume. They follow the source first.
        self._pods = Index(source, "Pod", lambda body: (pods.node_of(body), ""))
        self._attachments = Index(source, "VolumeAttachment", _place)
        self._closures: dict[str, _Closure] = {}
        self._users: dict[Ref, set[str]] = {}  # the nodes whose closures looked an object up
        # By node: the pods and claims that have left the closure, or were in it when its watchers left
        self._past: dict[str, dict[Ref, None]] = {}
        # The nodes with a change of which their watchers do not know yet, in the order of the changes
        self._unheard: dict[str, None] = {}
        self._is_telling = False  # whether `_go_on` is running, or is scheduled for the next turn of the loop
        source.subscribe(self._changed)

    @property
    def is_ready(self) -> bool:
        return self._source.is_ready

    def is_unknown(self, node: str, ref: Ref) -> bool:
        return ref in self._closure(node).looked_up and not self._source.knows(ref)

    def stamps(self, node: str) -> Mapping[Ref, Stamp]:
        """The node's objects: its Node, then pods by name, each after its own. Another mapping after each change."""
        return self._closure(node).stamps()

    def pods(self, node: str) -> Collection[Ref]:
        """The pods that are bound to the node, whatever it may have of them."""
        return self._pods.of((node, ""))

    def holds(self, node: str, ref: Ref) -> bool:
        return ref in self._closure(node).stamps()

    def may_concern(self, node: str, ref: Ref) -> bool:
        """Whether the node may know the object from its closure: the closure has it, had it, or is not yet known."""
        if not self.is_ready or ref in self._past.get(node, ()):
            return True
        closure = self._closure(node)
        is_of_it = ref in closure.looked_up or ref in closure.stamps()
        return is_of_it or not all(map(self._source.knows, closure.looked_up))

    def problems(self) -> list[str]:
        return [
            f"node {node} gets nothing that {ref} needs: {why}"
            for node, closure in sorted(self._closures.items())
            for ref, why in closure.refused().items()
        ]

    def forget(self, node: str) -> None:
        self._past.pop(node, None)

    def read(self, ref: Ref) -> Object | None:
        item = self._source.item(ref)
        return Object(ref, item.stamp, encode_body(item.body)) if item is not None else None

    def watch(self, node: str, changed: Callable[[], None], *, with_credentials: bool = True) -> Callable[[], None]:
        """Call `changed` when the node's closure may have changed, once for changes together. Returns the end.

        The node's rights count as they are now: its link, with its certificate, may be a new one.
        """
        if node not in self._closures:
            self._closures[node] = self._found(node, with_credentials=with_credentials)
        else:
            self._closures[node].with_credentials = with_credentials
            self._closures[node].touched.update(self.pods(node))
        closure = self._closure(node)
        closure.watchers.append(changed)

        def unwatch() -> None:
            if changed in closure.watchers:
                closure.watchers.remove(changed)
            if not closure.watchers and self._closures.get(node) is closure:
                del self._closures[node]
                closure.clear()
                self._note(closure)

        return unwatch

    def _found(self, node: str, *, with_credentials: bool = True) -> "_Closure":
        sources = self._source, self._pods, self._attachments
        return _Closure(node, *sources, self._rights, with_credentials=with_credentials)

    def _closure(self, node: str) -> "_Closure":
        closure = self._closures.get(node)
        if closure is None:
            return self._found(node)
        closure.change()
        self._note(closure)
        return closure

    def _changed(self, refs: frozenset[Ref]) -> None:
        for ref in refs:
            for node in self._users.get(ref, ()):
                self._touch(node, ref)
            body = self._source.body(ref)
            if ref.kind == "Node":
                self._touch(ref.name, ref)
            elif ref.kind == "Pod" and body is not None:
                self._touch(pods.node_of(body), ref)
            elif ref.kind == "VolumeAttachment" and body is not None:
                node, volume = _place(body)
                self._touch(node, Ref("PersistentVolume", "", volume))
        if not refs:  # the source has become ready
            self._unheard.update(dict.fromkeys(self._closures))
        if not self._is_telling:
            self._go_on()

    def _touch(self, node: str, ref: Ref) -> None:
        if (closure := self._closures.get(node)) is not None:
            closure.touched.add(ref)
            self._unheard[node] = None

    def _go_on(self) -> None:
        self._is_telling = True  # a change that the source makes meanwhile waits for a later turn
        for _ in range(NODES_A_TURN):
            node = next(iter(self._unheard), None)
            if node is None:
                break
            del self._unheard[node]
            self._tell(node)
        self._is_telling = bool(self._unheard)
        if self._is_telling:
            asyncio.get_running_loop().call_soon(self._go_on)

    def _tell(self, node: str) -> None:
        if node not in self._closures:
            return
        try:
            closure = self._closure(node)
        except Exception:  # the agent keeps the objects that it has
            log.exception("finding the objects that node %s needs failed", node)
            return
        for changed in list(closure.watchers):
            try:
                changed()
            except Exception:  # affects no other node
                log.exception("telling node %s of a change failed", node)

    def _note(self, closure: "_Closure") -> None:
        for ref in list(closure.unnoted):
            if ref in closure.looked_up:
                request = closure.requests.get(ref)
                if ref not in self._users or request is not None:
                    self._source.use(ref, request)
                self._users.setdefault(ref, set()).add(closure.node)
            elif ref in self._users:
                self._remember(closure.node, ref)
                discard(self._users, ref, closure.node)
                if ref not in self._users:
                    self._source.release(ref)
            closure.unnoted.discard(ref)

    def _remember(self, node: str, ref: Ref) -> None:
        if ref.kind not in _TOLD_OF:
            return
        past = self._past.setdefault(node, {})
        past.pop(ref, None)
        past[ref] = None
        if len(past) > _MOST_PAST:
            del past[next(iter(past))]


class _Closure:
    """One node's closure: the objects that each pod looks up, in order."""

    def __init__(
        self,
        node: str,
        source: Source,
        pods: Index,
        attachments: Index,
        rights: NodeRights,
        *,
        with_credentials: bool,
    ) -> None:
        self.node = node
        self.with_credentials = with_credentials
        self.watchers: list[Callable[[], None]] = []
        self.touched: set[Ref] = set()  # the objects that have changed since it was last brought up to date
        # Objects that it has begun or ceased to look up, until `Closures` has noted them. They outlive a failure: a
        # walk that is repeated after it would find no difference.
        self.unnoted: set[Ref] = set()
        self.looked_up: defaultdict[Ref, set[Ref]] = defaultdict(set)  # the pods whose walks look an object up
        self.requests: dict[Ref, TokenRequest] = {}  # the tokens to request, by the object that holds them
        self._source = source
        self._pods = pods
        self._attachments = attachments
        self._rights = rights
        self._walks: dict[Ref, _Walk] = {}
        self._stamps: dict[Ref, Stamp] | None = None
        self._walk_again(pods.of((node, "")))

    def refused(self) -> Mapping[Ref, str]:
        return {ref: why for pod in sorted(self._walks) for ref, why in self._walks[pod].refused.items()}

    def stamps(self) -> Mapping[Ref, Stamp]:
        if self._stamps is None:
            pods = sorted(self._walks, key=lambda ref: (ref.namespace, ref.name))
            refs = dict.fromkeys(chain([Ref("Node", "", self.node)], *(self._walks[pod].held for pod in pods)))
            self._stamps = {ref: stamp for ref in refs if (stamp := self._source.stamp(ref)) is not None}
        return self._stamps

    def change(self) -> None:
        if not (refs := self.touched):
            return
        before = self._stamps
        self._stamps = None
        stale = {pod for ref in refs if ref.kind not in _LEAVES for pod in self.looked_up.get(ref, ())}
        stale |= {ref for ref in refs if ref.kind == "Pod"}
        held = self._held(stale)
        self._walk_again(stale)
        if before is not None and held == self._held(stale):
            self._stamps = self._in_place(before, refs)
        self.touched = set()  # last, so that a failed walk is repeated

    def clear(self) -> None:
        self.unnoted.update(self.looked_up)  # so `Closures` notes that they are looked up no more
        self.looked_up.clear()

    def _held(self, pods: Iterable[Ref]) -> dict[Ref, tuple[Ref, ...]]:
        return {pod: self._walks[pod].held for pod in pods if pod in self._walks}

    def _in_place(self, before: Mapping[Ref, Stamp], refs: Collection[Ref]) -> dict[Ref, Stamp] | None:
        # New stamps of a node with 100 pods would take 15 times as long. None: an object came or went.
        stamps = dict(before)
        volumes = ((self.node, ref.name) for ref in refs if ref.kind == "PersistentVolume")
        for ref in chain(refs, *map(self._attachments.of, volumes)):
            stamp = self._source.stamp(ref)
            if (stamp is None) is (ref in stamps):
                return None
            if stamp is not None:
                stamps[ref] = stamp
        return stamps

    def _walk_again(self, stale: Iterable[Ref]) -> None:
        for pod in stale:
            is_mine = self._pods.has((self.node, ""), pod)
            new = self._walk(pod) if is_mine else _NOTHING  # before the old one goes, because it may fail
            old = self._walks.pop(pod, _NOTHING)
            for ref in old.looked_up - new.looked_up:
                discard(self.looked_up, ref, pod)
            for ref in new.looked_up - old.looked_up:
                self.looked_up[ref].add(pod)
            if is_mine:
                self._walks[pod] = new
            self.unnoted |= old.looked_up ^ new.looked_up
            if old.tokens == new.tokens:
                continue
            if old.tokens is not None:
                self.requests.pop(old.tokens.ref, None)  # manifests may give two pods one UID
                self.unnoted.add(old.tokens.ref)
            if new.tokens is not None:
                self.requests[new.tokens.ref] = new.tokens
                self.unnoted.add(new.tokens.ref)

    def _walk(self, pod: Ref) -> "_Walk":
        left_out = frozenset() if self.with_credentials else _CREDENTIALS
        held: dict[Ref, None] = {}
        visited: set[Ref] = set()
        looked_up: set[Ref] = set()
        refused: dict[Ref, str] = {}
        # The drivers of the pod's file system volumes. Block volumes get no tokens (kubernetes csi_block.go).
        mounting: list[Body] = []

        def visit(ref: Ref) -> None:
            if ref.kind in left_out:
                return
            looked_up.add(ref)
            if ref in visited:
                return
            visited.add(ref)
            body = self._source.body(ref)
            if body is not None and (why := self._rights.why_not(self.node, ref, body)):
                refused[ref] = why
                if ref == pod:  # else its node would take down the pod's other volumes
                    held[ref] = None
                return
            if body is not None:
                visit_needs(ref, body)
            held[ref] = None
            if ref.kind == "PersistentVolume" and not left_out:
                attachments = self._attachments.of((self.node, ref.name))
                looked_up.update(attachments)
                held.update(dict.fromkeys(attachments))

        def visit_needs(ref: Ref, body: Body) -> None:
            for needed in KINDS[ref.kind].needs(body):
                found = self._source.body(needed)
                if ref.kind != "PersistentVolumeClaim" or (found is not None and is_claimed_by(found, body)):
                    visit(needed)
                else:
                    looked_up.add(needed)
                if needed.kind == "CSIDriver" and found is not None and body["spec"].get("volumeMode") != "Block":
                    mounting.append(found)

        visit(pod)
        body = self._source.body(pod)
        tokens = request_of(body, mounting) if body is not None and not left_out else None
        if tokens is not None:
            looked_up.add(tokens.ref)
            del held[pod]  # the pod comes last
            held |= {tokens.ref: None, pod: None}
        return _Walk(tuple(held), frozenset(looked_up), tokens, refused)


@dataclass(frozen=True, slots=True)
class _Walk:
    """The result of a walk from a pod to the objects that the pod needs."""

    # The objects for the node, each after the objects that it needs, the pod last; some may not exist
    held: tuple[Ref, ...] = ()
    looked_up: frozenset[Ref] = frozenset()  # the objects that this result depends on
    tokens: TokenRequest | None = None
    # The objects of which the node may not have what they need, with the reason. It gets none but the pod.
    refused: Mapping[Ref, str] = field(default_factory=dict)


_NOTHING = _Walk()


def _place(attachment: Body) -> tuple[str, str]:
    return volumeattachments.node_of(attachment), volumeattachments.volume_of(attachment)
