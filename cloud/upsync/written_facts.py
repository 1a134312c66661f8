"""The written facts: what the nodes tell, kept on the hub's disk as ever, and from there written to Kubernetes.

Rules:

* A fact is on the hub's disk before it is acknowledged, so nothing is lost while the API server is away: it is written
  later. What was told before the hub's start is looked at again.
* A Node is acknowledged when all that is in use stands in Kubernetes: an agent stages a volume for the first time only
  when the attach-detach controller can see its node's `volumesInUse`
  (docs/csi-contract.md#volumesinuse-comes-before-staging). What the node tells after that waits there meanwhile, for
  its facts are stored one after another; so nothing else is waited for.
* Each kind has a queue of its own: Events that the API server does not take hold up no Node.
* Events are written from memory: one that is lost with the hub is lost.
* Of a node that a kubelet serves nothing is written any more; what its agent told before is void.
* An object that is deleted while it is written is looked for once more at once; only then it is a problem.
* Of a node that is gone for good, what the hub made in Kubernetes is deleted, unless the node comes back before; until
  that is done it is named among the problems. A hub that is restarted meanwhile knows nothing of it.
"""

import asyncio
import logging
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from typing import Any, Final, Protocol

from cloud.kinds.fields import Body
from cloud.kinds.pods import claim_names, node_of
from cloud.kube import KubeError
from cloud.sync.fact_kinds import NODE_KINDS, Fact, read_fact
from cloud.upsync import farewell, handover
from cloud.upsync.in_use import InUse
from cloud.upsync.write_queue import WriteQueue
from common.objects import Object, Ref, Stamp

log = logging.getLogger("csi_bridge.hub.upsync")

_MOST_EVENTS: Final = 1_000
"""Events that wait to be written; of more the oldest are given up."""

Key = tuple[str, Ref]
"""A node, and the object that it tells of."""


class Sink(Protocol):
    """Where facts are kept (`cloud.sync.facts.FactSink`)."""

    def stamps(self, node: str) -> Mapping[Ref, Stamp]:
        """What is held of a node, without its events."""

    async def store(self, node: str, obj: Object) -> bool:
        """Keep a fact, if it counts; whether it does. ValueError and OSError as in `cloud.sync.streams.FactSink`."""

    async def drop(self, node: str, ref: Ref, uid: str) -> None:
        """The node tells this no more."""

    async def void(self, node: str) -> None:
        """All that the node told is void."""


class Files(Protocol):
    """Where they are read again (`cloud.sync.fact_table.FactTable`)."""

    def of(self, node: str) -> Mapping[Ref, Fact]:
        """A node's facts, without its events."""

    def nodes(self) -> Iterator[str]:
        """The nodes that have told any."""


class Writer(Protocol):
    """Writes facts of one kind."""

    async def write(self, node: str, ref: Ref, fact: dict[str, Any] | None) -> float | None:
        """Bring the object into line; in how many seconds to do so again, if at all. KubeError for another try."""

    def forget(self, node: str, ref: Ref) -> None:
        """Nothing is written of it any more: nothing is to be remembered of it, either."""

    def problems(self) -> list[str]:
        """What people must mend, in sentences."""


class Hearts(Protocol):
    """What says that nodes are there (`cloud.upsync.heartbeats.Heartbeats`)."""

    def up(self, node: str) -> None:
        """The node's session lives."""

    def down(self, node: str) -> None:
        """The node's session has ended."""


class WrittenFacts:
    """Takes what the nodes tell (`cloud.sync.streams.FactSink`)."""

    def __init__(
        self,
        sink: Sink,
        files: Files,
        writers: Mapping[str, Writer],
        hearts: Hearts,
        in_use: InUse,
        *,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
        later: Callable[[float, Callable[[], None]], object] | None = None,
    ) -> None:
        """Nothing is written yet.

        Args:
            sink: keeps what is told.
            files: gives it back.
            writers: by kind.
            hearts: hear which nodes are there.
            in_use: hears from the writer of Nodes what stands there.
            pause: waits for so many seconds.
            later: calls back after so many seconds; the running loop does, if it is not given.
        """
        self._hearts, self._in_use = hearts, in_use
        self._streams: Counter[str] = Counter()
        self._observed: set[str] = set()
        """The nodes that a kubelet serves, as their agents said last."""
        self._sink, self._files, self._writers = sink, files, writers
        self._events: OrderedDict[Key, Body] = OrderedDict()
        self._uids: dict[str, str] = {}
        """Of the Nodes that are there, as the cluster told last."""
        self._tellers: defaultdict[Ref, set[str]] = defaultdict(set)
        """By claim that is there, or may come: the nodes that have told of it."""
        self._queues: dict[str, WriteQueue[Key]] = {
            kind: WriteQueue(self._write, pause=pause, later=later) for kind in writers
        }

    def begin(self) -> None:
        """Look at all that was told before."""
        for node in self._files.nodes():
            for ref in self._files.of(node):
                self._told((node, ref))

    async def close(self) -> None:
        """Write no more."""
        for queue in self._queues.values():
            await queue.close()

    def problems(self) -> list[str]:
        """What is not written yet, and what people must mend."""
        unwritten = [text for queue in self._queues.values() for text in queue.problems()]
        return unwritten + [text for writer in self._writers.values() for text in writer.problems()]

    def stamps(self, node: str) -> Mapping[Ref, Stamp]:
        """What is held of a node, without its events, and without a Node of which not all stands in Kubernetes."""
        stamps = self._sink.stamps(node)
        ref = Ref("Node", "", node)
        fact = self._files.of(node).get(ref)
        if fact is None or self._in_use.has(node, _in_use(fact.body)):
            return stamps
        return {it: stamp for it, stamp in stamps.items() if it != ref}

    def up(self, node: str) -> None:
        """The node tells its facts from now on, on one stream more."""
        self._observed.discard(node)
        for kind in (farewell.KIND, handover.KIND):  # who is back is not gone, and no kubelet's
            self._queues[kind].discard((node, Ref(kind, "", node)))
        self._streams[node] += 1
        self._hearts.up(node)

    def down(self, node: str) -> None:
        """One of these streams has ended."""
        self._streams[node] -= 1
        if not self._streams[node]:
            del self._streams[node]
            self._hearts.down(node)

    def observed(self, node: str) -> None:
        """A kubelet serves the node from now on: it is handed over."""
        self._observed.add(node)
        self._end(node)
        for ref in (Ref(handover.KIND, "", node), *self._files.of(node)):
            self._add((node, ref))

    def changed(self, ref: Ref, body: Body | None) -> None:
        """An object of the cluster has changed: what nodes tell of it may count now, or be to write once more.

        Args:
            ref: the object.
            body: as it is now; None if it is gone.
        """
        match ref.kind:
            case "Node" if self._is_gone(ref.name, body):
                self._in_use.lose(ref.name)
                for told in self._files.of(ref.name):  # whose Node it is decides about its pods, too
                    self._add((ref.name, told))
            case "PersistentVolumeClaim" if body is None:
                self._tellers.pop(ref, None)  # another one of its name is not what they told of
            case "PersistentVolumeClaim":
                for node in self._tellers.get(ref, ()):
                    self._add_if_told(node, ref)
            case "Pod" if body is not None:
                for name in claim_names(body):
                    self._add_if_told(node_of(body), Ref("PersistentVolumeClaim", ref.namespace, name))

    def _is_gone(self, node: str, body: Body | None) -> bool:
        """Whether a Node that was there is not. A watch that was away tells only of the one in its place."""
        if body is None:
            self._uids.pop(node, None)
            return True
        uid = body["metadata"]["uid"]
        before, self._uids[node] = self._uids.get(node, uid), uid
        return bool(before != uid)

    def _add(self, key: Key) -> None:
        self._queues[key[1].kind].add(key)

    def _add_if_told(self, node: str, ref: Ref) -> None:
        if ref in self._files.of(node):
            self._add((node, ref))

    async def store(self, node: str, obj: Object) -> bool:
        """Keep a fact that counts, and have it written. When this returns for a Node, all that is in use stands there.

        Raises:
            ValueError: it is not this node's to tell, or makes no sense.
            OSError: the disk is full or broken; the fact is to be told again.
        """
        if not await self._sink.store(node, obj):
            return False
        key = node, obj.ref
        if obj.ref.kind == "Event":
            self._put_event(key, read_fact(obj))
        self._told(key)
        if obj.ref.kind == "Node" and node not in self._observed:
            await self._in_use.wait(node, _in_use(read_fact(obj)))
        return True

    async def drop(self, node: str, ref: Ref, uid: str) -> None:
        """The node tells this no more. Errors as in `store`."""
        await self._sink.drop(node, ref, uid)
        if ref not in self._files.of(node):
            self._untell(node, ref)
        if ref.kind != "Event":
            self._add((node, ref))

    async def void(self, node: str) -> None:
        """All that the node told is void; what stands in Kubernetes stays there.

        Raises:
            OSError: the disk is broken.
        """
        for ref in self._files.of(node):
            self._untell(node, ref)
        await self._sink.void(node)

    async def forget(self, node: str) -> None:
        """The node is gone for good, with all that it told, and with what the hub made of that.

        Raises:
            OSError: the disk is broken.
        """
        self._end(node)
        told = dict.fromkeys((*(Ref(kind, "", node) for kind in NODE_KINDS), *self._files.of(node)))
        await self.void(node)
        if node not in self._streams:  # it may be back by now
            self._add((node, Ref(farewell.KIND, "", node)))
        for ref in told:
            self._add((node, ref))

    def _told(self, key: Key) -> None:
        node, ref = key
        if ref.kind == "PersistentVolumeClaim":
            self._tellers[ref].add(node)
        self._add(key)

    def _untell(self, node: str, ref: Ref) -> None:
        if (tellers := self._tellers.get(ref)) is not None:
            tellers.discard(node)
            if not tellers:
                del self._tellers[ref]

    def _end(self, node: str) -> None:
        """Nothing that the node told counts any more."""
        self._in_use.end(node)
        for key in [key for key in self._events if key[0] == node]:
            del self._events[key]
            self._queues["Event"].discard(key)

    def _put_event(self, key: Key, body: Body) -> None:
        self._events.pop(key, None)
        self._events[key] = body
        if len(self._events) > _MOST_EVENTS:
            lost, _ = self._events.popitem(last=False)
            self._queues["Event"].discard(lost)
            log.warning("an event of node %s is dropped, because too many wait to be written: %s", *lost)

    async def _write(self, key: Key) -> float | None:
        node, ref = key
        if node in self._observed and ref.kind != handover.KIND:
            self._writers[ref.kind].forget(node, ref)
            return None
        if ref.kind == "Event":
            if (body := self._events.get(key)) is not None:
                await self._writers[ref.kind].write(node, ref, dict(body))
                if self._events.get(key) is body:
                    del self._events[key]
            return None
        try:
            return await self._write_told(node, ref)
        except KubeError as error:
            if not error.is_missing:
                raise
        return await self._write_told(node, ref)  # deleted meanwhile, as by a farewell: it is looked for again

    async def _write_told(self, node: str, ref: Ref) -> float | None:
        fact = self._files.of(node).get(ref)
        return await self._writers[ref.kind].write(node, ref, dict(fact.body) if fact is not None else None)


def _in_use(body: Body) -> Collection[str]:
    """What a Node's fact says is in use."""
    return (body.get("status") or {}).get("volumesInUse") or ()
