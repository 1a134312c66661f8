"""The written facts: what the nodes tell, kept on the hub's disk as ever, and from there written to Kubernetes.

Rules:

* A fact is on the hub's disk before it is acknowledged, so nothing is lost while the API server is away: it is written
  later. What was told before the hub's start is looked at again.
* A Node is acknowledged when Kubernetes has it: an agent stages a volume for the first time only when its node's
  `volumesInUse` stands where the attach-detach controller sees it (RULE C12). What the node tells after
  that waits there meanwhile: its facts are stored one after another.
* Events are written from memory: one that is lost with the hub is lost.
"""

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Final, Protocol

from cloud.sync.fact_kinds import NODE_KINDS, Fact, read_fact
from cloud.sync.fields import Body
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

    async def store(self, node: str, obj: Object) -> None:
        """Keep a fact; ValueError and OSError as in `cloud.sync.streams.FactSink`."""

    async def drop(self, node: str, ref: Ref, uid: str) -> None:
        """The node tells this no more."""

    async def forget(self, node: str) -> None:
        """The node is gone for good."""


class Files(Protocol):
    """Where they are read again (`cloud.sync.fact_files.FactFiles`)."""

    def of(self, node: str) -> Mapping[Ref, Fact]:
        """A node's facts, without its events."""

    def nodes(self) -> Iterator[str]:
        """The nodes that have told any."""


class Writer(Protocol):
    """Writes facts of one kind."""

    async def write(self, node: str, ref: Ref, fact: dict[str, Any] | None) -> None:
        """Bring the object into line; KubeError for another try."""

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
        *,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Nothing is written yet.

        Args:
            sink: keeps what is told.
            files: gives it back.
            writers: by kind.
            hearts: hear which nodes are there.
            pause: waits for so many seconds.
        """
        self._hearts = hearts
        self._streams: Counter[str] = Counter()
        self._sink, self._files, self._writers = sink, files, writers
        self._events: OrderedDict[Key, Body] = OrderedDict()
        self._queue: WriteQueue[Key] = WriteQueue(self._write, pause=pause)

    def begin(self) -> None:
        """Look at all that was told before."""
        for node in self._files.nodes():
            for ref in self._files.of(node):
                self._queue.add((node, ref))

    async def close(self) -> None:
        """Write no more."""
        await self._queue.close()

    def problems(self) -> list[str]:
        """What is not written yet, and what people must mend."""
        return [*self._queue.problems(), *(text for writer in self._writers.values() for text in writer.problems())]

    def stamps(self, node: str) -> Mapping[Ref, Stamp]:
        """What is held of a node, without its events."""
        return self._sink.stamps(node)

    def up(self, node: str) -> None:
        """The node tells its facts from now on, on one stream more."""
        self._streams[node] += 1
        self._hearts.up(node)

    def down(self, node: str) -> None:
        """One of these streams has ended."""
        self._streams[node] -= 1
        if not self._streams[node]:
            del self._streams[node]
            self._hearts.down(node)

    def changed(self, ref: Ref, *, gone: bool) -> None:
        """An object of the cluster has changed: what nodes tell of it may count now, or be to write once more."""
        if ref.kind == "Node" and gone:
            for kind in NODE_KINDS:
                self._add_if_told(ref.name, Ref(kind, "", ref.name))
        elif ref.kind == "PersistentVolumeClaim" and not gone:
            for node in self._files.nodes():
                self._add_if_told(node, ref)

    def _add_if_told(self, node: str, ref: Ref) -> None:
        if ref in self._files.of(node):
            self._queue.add((node, ref))

    async def store(self, node: str, obj: Object) -> None:
        """Keep a fact, and have it written. When this returns for a Node, it is.

        Raises:
            ValueError: it is not this node's to tell, or makes no sense.
            OSError: the disk is full or broken; the fact is to be told again.
        """
        await self._sink.store(node, obj)
        key = node, obj.ref
        if obj.ref.kind == "Event":
            self._put_event(key, read_fact(obj))
        self._queue.add(key)
        if obj.ref.kind == "Node":
            await self._queue.written(key)

    async def drop(self, node: str, ref: Ref, uid: str) -> None:
        """The node tells this no more. Errors as in `store`."""
        await self._sink.drop(node, ref, uid)
        if ref.kind != "Event":
            self._queue.add((node, ref))

    async def forget(self, node: str) -> None:
        """The node is gone for good, and all that it told; what stands in Kubernetes stays there.

        Raises:
            OSError: the disk is broken.
        """
        await self._sink.forget(node)

    def _put_event(self, key: Key, body: Body) -> None:
        self._events.pop(key, None)
        self._events[key] = body
        if len(self._events) > _MOST_EVENTS:
            (lost, about), _ = self._events.popitem(last=False)
            log.warning("an event of node %s is given up, for too many wait to be written: %s", lost, about)

    async def _write(self, key: Key) -> None:
        node, ref = key
        if ref.kind == "Event":
            if (body := self._events.get(key)) is not None:
                await self._writers[ref.kind].write(node, ref, dict(body))
                if self._events.get(key) is body:
                    del self._events[key]
            return
        fact = self._files.of(node).get(ref)
        await self._writers[ref.kind].write(node, ref, dict(fact.body) if fact is not None else None)
