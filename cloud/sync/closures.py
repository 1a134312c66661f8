"""The closures: for each node the objects that concern it, and nothing of anybody else's.

    Node ── the node's own
    Pod with spec.nodeName
     ├── ServiceAccountToken                     if a CSIDriver of its volumes asks for one
     ├── CSIDriver, Secret                       of the volumes that stand in it
     └── PersistentVolumeClaim
          └── PersistentVolume                   if it names the claim as well
               ├── CSIDriver, Secrets            of node calls
               └── VolumeAttachments             of this node

Rules:

* What an object needs is looked up whether it exists or not, and remembered: when it comes, goes or changes, exactly
  the pods that looked it up are walked again.
* A source may have some objects only on demand: it hears what is looked up first, and what no more.
* A closure is kept while somebody watches it. Who asks for another one gets it made for that answer alone, and the
  source is asked for nothing.
* One change may concern every node: they look again and hear of it a few in each turn of the loop. Who asks meanwhile
  is told what is so now.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar

from cloud.kinds import pods, volumeattachments
from cloud.kinds.fields import Body
from cloud.kinds.persistentvolumes import is_claimed_by
from cloud.kinds.table import KINDS
from cloud.kinds.tokens import TokenRequest, request_of
from cloud.sources.source import Source
from common.objects import Object, Ref, Stamp, encode_body

_K = TypeVar("_K")
_V = TypeVar("_V")

_LEAVES = frozenset({"Node", "Secret", "ServiceAccountToken", "VolumeAttachment"})
"""They need no other: a change in one changes nothing in a closure but its own stamp."""

_NODES_A_TURN = 20
"""Look again in one turn of the loop: some 5 ms, with a few pods on each."""

log = logging.getLogger("csi_bridge.hub.closures")


class Closures:
    """The closure of every node, from one source."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._bound = _Bound()
        self._closures: dict[str, _Closure] = {}
        self._users: dict[Ref, set[str]] = {}
        """The nodes whose closures looked an object up."""
        self._watchers: dict[str, list[Callable[[], None]]] = defaultdict(list)
        self._touched: dict[str, set[Ref]] = defaultdict(set)
        """By node: what has changed since its closure looked last."""
        self._unheard: dict[str, None] = {}
        """The nodes that have not heard yet that something changed, in order."""
        self._is_telling = False
        """Whether they are hearing it, in this turn of the loop or the next one."""
        self._changed(frozenset(ref for kind in _Bound.KINDS for ref in source.refs(kind)))
        source.subscribe(self._changed)

    @property
    def is_ready(self) -> bool:
        """Whether the source has told everything once. Before that, no object missing here is known to be gone."""
        return self._source.is_ready

    def is_known(self, node: str) -> bool:
        """Whether every object that the node's closure looks up is there, or known not to be."""
        return self.is_ready and all(map(self._source.knows, self._closure(node).looked_up()))

    def is_unknown(self, node: str, ref: Ref) -> bool:
        """Whether the node's closure looks an object up of which the source cannot say what there is."""
        return self._closure(node).looks_up(ref) and not self._source.knows(ref)

    def stamps(self, node: str) -> Mapping[Ref, Stamp]:
        """What the node is to hold: its Node, then each pod, in the order of their names, after all that it needs.

        The mapping is another one after a change, and the same one as long as nothing changed.
        """
        return self._closure(node).stamps()

    def holds(self, node: str, ref: Ref) -> bool:
        """Whether the object is in the node's closure."""
        return ref in self._closure(node).stamps()

    def read(self, ref: Ref) -> Object | None:
        """An object in its present state; None if there is none."""
        body, stamp = self._source.body(ref), self._source.stamp(ref)
        return Object(ref, stamp, encode_body(body)) if body is not None and stamp is not None else None

    def watch(self, node: str, changed: Callable[[], None]) -> Callable[[], None]:
        """Be told when the node's closure may have changed, once for all that changed together.

        Returns:
            What ends it.
        """
        if node not in self._closures:
            self._closures[node] = _Closure(node, self._source, self._bound)
            self._closure(node)
        self._watchers[node].append(changed)

        def unwatch() -> None:
            watchers = self._watchers.get(node, [])
            if changed in watchers:
                watchers.remove(changed)
            if not watchers:
                self._watchers.pop(node, None)
                self._forget(node)

        return unwatch

    def _closure(self, node: str) -> "_Closure":
        closure = self._closures.get(node)
        if closure is None:
            return _Closure(node, self._source, self._bound)
        if refs := self._touched.get(node):
            closure.change(refs)
            del self._touched[node]
        self._note(closure)
        return closure

    def _forget(self, node: str) -> None:
        self._touched.pop(node, None)
        closure = self._closures.pop(node, None)
        if closure is not None:
            closure.clear()
            self._note(closure)

    def _changed(self, refs: frozenset[Ref]) -> None:
        """The source says that these have changed; or, if it names none, that it is ready."""
        for ref in refs:
            for node in self._users.get(ref, ()):
                self._touch(node, ref)
            for node, concerned in self._bound.move(ref, self._source.body(ref)):
                self._touch(node, concerned)
        if not refs:
            self._unheard.update(dict.fromkeys(self._watchers))
        if not self._is_telling:
            self._go_on()

    def _touch(self, node: str, ref: Ref) -> None:
        if node in self._closures:
            self._touched[node].add(ref)
            self._unheard[node] = None

    def _go_on(self) -> None:
        """Let the next few nodes look again and hear of it. What they give back then is a change, too, and waits."""
        self._is_telling = True
        for _ in range(_NODES_A_TURN):
            node = next(iter(self._unheard), None)
            if node is None:
                break
            del self._unheard[node]
            self._tell(node)
        self._is_telling = bool(self._unheard)
        if self._is_telling:
            asyncio.get_running_loop().call_soon(self._go_on)

    def _tell(self, node: str) -> None:
        """One node must not keep the others from hearing, whatever its objects or its stream are."""
        try:
            if node in self._closures:
                self._closure(node)
        except Exception:  # it keeps what it has: nobody knows what it needs
            log.exception("finding the objects that node %s needs failed", node)
            return
        for changed in list(self._watchers.get(node, ())):
            try:
                changed()
            except Exception:
                log.exception("telling node %s of a change failed", node)

    def _note(self, closure: "_Closure") -> None:
        """Keep the index of users in step with what a closure looks up, or no more."""
        for ref in list(closure.unnoted):
            if closure.looks_up(ref):
                request = closure.request(ref)
                if ref not in self._users or request is not None:
                    self._source.use(ref, request)
                self._users.setdefault(ref, set()).add(closure.node)
            elif ref in self._users:
                _discard(self._users, ref, closure.node)
                if ref not in self._users:
                    self._source.release(ref)
            closure.unnoted.discard(ref)


class _Bound:
    """What names a node by itself: its pods, and its attachments by volume."""

    KINDS = ("Pod", "VolumeAttachment")

    def __init__(self) -> None:
        self.pods: dict[str, set[Ref]] = {}
        self.attachments: dict[tuple[str, str], set[Ref]] = {}
        """By node and name of the PersistentVolume."""
        self._places: dict[Ref, tuple[str, str]] = {}

    def move(self, ref: Ref, body: Body | None) -> Iterator[tuple[str, Ref]]:
        """Put an object where it belongs now.

        Yields:
            Each node concerned, the one that lost it included, and the object from which that node is to look again.
        """
        if ref.kind == "Node":
            yield ref.name, ref
        if ref.kind not in self.KINDS:
            return
        old, new = self._places.pop(ref, None), _place(ref, body)
        if old is not None:
            self._remove(ref, old)
        if new is not None:
            self._places[ref] = new
            self._add(ref, new)
        for node, volume in {place for place in (old, new) if place is not None}:
            yield node, Ref("PersistentVolume", "", volume) if ref.kind == "VolumeAttachment" else ref

    def _add(self, ref: Ref, place: tuple[str, str]) -> None:
        if ref.kind == "Pod":
            self.pods.setdefault(place[0], set()).add(ref)
        else:
            self.attachments.setdefault(place, set()).add(ref)

    def _remove(self, ref: Ref, place: tuple[str, str]) -> None:
        if ref.kind == "Pod":
            _discard(self.pods, place[0], ref)
        else:
            _discard(self.attachments, place, ref)


def _place(ref: Ref, body: Body | None) -> tuple[str, str] | None:
    """The node and, of an attachment, the volume's name."""
    if body is None:
        return None
    if ref.kind == "Pod":
        return pods.node_of(body), ""
    return volumeattachments.node_of(body), volumeattachments.volume_of(body)


class _Closure:
    """One node's closure: of each pod what it looks up, in order.

    Attributes:
        unnoted: what it looks up now, or no more, and nobody took note of. It is kept here until somebody did: a look
            that is repeated after a failure finds no difference to what the first one changed.
    """

    def __init__(self, node: str, source: Source, bound: _Bound) -> None:
        self.node = node
        self.unnoted: set[Ref] = set()
        self._source, self._bound = source, bound
        self._walks: dict[Ref, _Walk] = {}
        self._pods: dict[Ref, set[Ref]] = {}
        """By object: the pods that look it up."""
        self._requests: dict[Ref, TokenRequest] = {}
        """By object that holds tokens: which ones."""
        self._stamps: dict[Ref, Stamp] | None = None
        self._walk_again(bound.pods.get(node, ()))

    def looks_up(self, ref: Ref) -> bool:
        """Whether any pod does."""
        return ref in self._pods

    def request(self, ref: Ref) -> TokenRequest | None:
        """What tokens an object is to hold; None if it is to hold none."""
        return self._requests.get(ref)

    def looked_up(self) -> Collection[Ref]:
        """All that any pod does."""
        return self._pods.keys()

    def stamps(self) -> Mapping[Ref, Stamp]:
        """All that is there, in order."""
        if self._stamps is None:
            self._stamps = {}
            self._add_stamp(Ref("Node", "", self.node), self._stamps)
            for pod in sorted(self._walks, key=lambda ref: (ref.namespace, ref.name)):
                for ref in self._walks[pod].held:
                    self._add_stamp(ref, self._stamps)
        return self._stamps

    def change(self, refs: set[Ref]) -> None:
        """These have changed: look up again what depends on them."""
        before, self._stamps = self._stamps, None
        stale = {pod for ref in refs if ref.kind not in _LEAVES for pod in self._pods.get(ref, ())}
        stale |= {ref for ref in refs if ref.kind == "Pod"}
        held = self._held(stale)
        self._walk_again(stale)
        if before is not None and held == self._held(stale):
            self._stamps = self._in_place(before, refs)

    def clear(self) -> None:
        """Forget all."""
        self.unnoted.update(self._pods)
        self._pods = {}

    def _walk_again(self, stale: Iterable[Ref]) -> None:
        mine = self._bound.pods.get(self.node, ())
        for pod in stale:
            new = _walk(pod, self.node, self._source, self._bound) if pod in mine else _NOTHING
            old = self._walks.pop(pod, _NOTHING)
            for ref in old.looked_up - new.looked_up:
                _discard(self._pods, ref, pod)
            for ref in new.looked_up - old.looked_up:
                self._pods.setdefault(ref, set()).add(pod)
            if pod in mine:
                self._walks[pod] = new
            self.unnoted |= old.looked_up ^ new.looked_up
            if old.tokens != new.tokens:
                self.unnoted |= self._ask(old.tokens, new.tokens)

    def _ask(self, old: TokenRequest | None, new: TokenRequest | None) -> set[Ref]:
        """A pod needs other tokens than before. The objects that hold them."""
        if old is not None:
            self._requests.pop(old.ref, None)  # manifests may give two pods one UID
        if new is not None:
            self._requests[new.ref] = new
        return {it.ref for it in (old, new) if it is not None}

    def _held(self, pods: Iterable[Ref]) -> dict[Ref, tuple[Ref, ...]]:
        return {pod: self._walks[pod].held for pod in pods if pod in self._walks}

    def _attachments(self, ref: Ref) -> Iterable[Ref]:
        """An attachment that changes is told by its volume (`_Bound.move`)."""
        return self._bound.attachments.get((self.node, ref.name), ()) if ref.kind == "PersistentVolume" else ()

    def _in_place(self, before: Mapping[Ref, Stamp], refs: Collection[Ref]) -> dict[Ref, Stamp] | None:
        """What there is after a change of states alone, without looking at all there is; None if one came or went."""
        stamps = dict(before)
        for ref in chain(refs, *map(self._attachments, refs)):
            stamp = self._source.stamp(ref)
            if (stamp is None) is (ref in stamps):
                return None
            if stamp is not None:
                stamps[ref] = stamp
        return stamps

    def _add_stamp(self, ref: Ref, stamps: dict[Ref, Stamp]) -> None:
        if ref not in stamps and (stamp := self._source.stamp(ref)) is not None:
            stamps[ref] = stamp


@dataclass(frozen=True, slots=True)
class _Walk:
    """From a pod to all that it needs.

    Attributes:
        held: what the node may hold of it, each after what it needs, the pod last; not all of it need exist.
        looked_up: what the answer depends on.
        tokens: those that it needs.
    """

    held: tuple[Ref, ...] = ()
    looked_up: frozenset[Ref] = frozenset()
    tokens: TokenRequest | None = None


_NOTHING = _Walk()


def _walk(pod: Ref, node: str, source: Source, bound: _Bound) -> _Walk:
    held: dict[Ref, None] = {}
    visited: set[Ref] = set()
    looked_up: set[Ref] = set()
    mounting: set[Ref] = set()
    """The drivers of its volumes, without those of block volumes, which get no tokens (kubernetes csi_block.go)."""

    def visit(ref: Ref) -> None:
        looked_up.add(ref)
        if ref in visited:
            return
        visited.add(ref)
        body = source.body(ref)
        for needed in KINDS[ref.kind].needs(body) if body is not None else ():
            if ref.kind != "PersistentVolumeClaim" or _is_mutual(needed, body, source):
                visit(needed)
            else:
                looked_up.add(needed)
            if needed.kind == "CSIDriver" and body is not None and body["spec"].get("volumeMode") != "Block":
                mounting.add(needed)
        held[ref] = None
        if ref.kind == "PersistentVolume":
            held.update(dict.fromkeys(sorted(bound.attachments.get((node, ref.name), ()))))

    visit(pod)
    tokens = _tokens(source.body(pod), map(source.body, mounting))
    if tokens is not None:
        looked_up.add(tokens.ref)
        del held[pod]  # the last
        held |= {tokens.ref: None, pod: None}
    return _Walk(tuple(held), frozenset(looked_up), tokens)


def _tokens(pod: Body | None, drivers: Iterable[Body | None]) -> TokenRequest | None:
    return request_of(pod, (body for body in drivers if body is not None)) if pod is not None else None


def _is_mutual(volume: Ref, claim: Body | None, source: Source) -> bool:
    body = source.body(volume)
    return body is not None and claim is not None and is_claimed_by(body, claim)


def _discard(index: dict[_K, set[_V]], key: _K, value: _V) -> None:
    index[key].discard(value)
    if not index[key]:
        del index[key]
