"""The hub's ends of the sync streams: each agent is told its node's closure, and tells the facts of its node.

Rules:

* As long as the source has not told everything once, no agent is told anything: what is missing may only be late.
* A stream that begins waits a little for what its node needs and is not known yet, so that all comes in order. Then it
  goes on without: of what is unknown a node keeps what it has (`common.sync`).
* A node's facts are stored one after another, also over its streams: what an old stream gave is stored before a new
  one is asked what it has.
* A fact that cannot be taken is refused by name; the others go on. A disk that takes none is tried again.
* An agent beside a kubelet tells nothing, and what its node told before is void.
* A peer that breaks the rules of a sync is told so, and its stream ends.
"""

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Protocol
from weakref import WeakValueDictionary

from common.digest import Digest
from common.errors import NotCarried, RemoteProtocolError
from common.link import Stream
from common.objects import Object, Ref, Stamp
from common.status import Code, Origin, Status
from common.sync import Confirmed, Event, Untold
from common.sync_messages import Change, Drop, Put
from common.sync_stream import Telling, learn

log = logging.getLogger("csi_bridge.hub.sync")

_RETRY_S = 5.0
"""Between a fact that could not be stored and the next try: a disk is emptied by people."""

_PATIENCE_S = 5.0
"""For what is not known yet, when a stream begins: three tries of what fails (`on_demand`). Longer would keep all else
from the node."""

_MOST_STREAMS = 4
"""Of one node at once. An agent has two; those of a link that is just ending may still be there."""

_MOST_REFUSALS = 10
"""Of one stream are logged: a node could fill the hub's disk with them."""


class Closures(Protocol):
    """What concerns each node."""

    @property
    def is_ready(self) -> bool:
        """Whether the source has told everything once."""

    def is_known(self, node: str) -> bool:
        """Whether all that concerns the node is known: what is missing then is not there."""

    def is_unknown(self, node: str, ref: Ref) -> bool:
        """Whether an object concerns the node of which nobody can say now what there is."""

    def stamps(self, node: str) -> Mapping[Ref, Stamp]:
        """The state of each object that concerns the node, in the order in which they are to be told."""

    def read(self, ref: Ref) -> Object | None:
        """An object as it is now."""

    def watch(self, node: str, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` when the node's closure has changed, or has become ready. Gives what ends that."""


class FactSink(Protocol):
    """Where facts go."""

    def stamps(self, node: str) -> Mapping[Ref, Stamp]:
        """The state of each fact that the node told and that is stored, without those of `PASSING_KINDS`."""

    def up(self, node: str) -> None:
        """The node tells its facts from now on, on one stream more."""

    def down(self, node: str) -> None:
        """One of these streams has ended."""

    def observed(self, node: str) -> None:
        """A kubelet serves the node from now on."""

    async def void(self, node: str) -> None:
        """All that the node told is void. OSError as in `store`."""

    async def store(self, node: str, obj: Object) -> bool:
        """Store one, or find that it is of no use any more. Whether it is of use.

        Raises:
            ValueError: it makes no sense, or is not this node's to tell. It is refused, in these words.
            OSError: not now. It is tried again.
        """

    async def drop(self, node: str, ref: Ref, uid: str) -> None:
        """The node says no more of it. Errors as in `store`."""

    async def forget(self, node: str) -> None:
        """The node is gone for good, and all that it told. OSError as in `store`."""


class SyncServer:
    """Serves the streams of all nodes."""

    def __init__(self, closures: Closures, sink: FactSink) -> None:
        self._closures = closures
        self._sink = sink
        self._orders: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """By node: held while a fact is being stored."""
        self._tasks: set[asyncio.Task[str]] = set()
        """Facts that are being stored, also after their streams."""
        self._open: Counter[str] = Counter()
        self._untold: defaultdict[str, dict[Ref, Untold]] = defaultdict(dict)
        """By node that is connected: what cannot be told to it."""

    def problems(self) -> list[str]:
        """Objects that nodes lack because they cannot be told."""
        return [
            f"node {node} does not get {ref}: {one.why}"
            for node, untold in sorted(self._untold.items())
            for ref, one in untold.items()
            if self._closures.stamps(node).get(ref) == one.stamp
        ]

    def knows(self, node: str) -> bool:
        """Whether anything that a node told is stored."""
        return bool(self._sink.stamps(node))

    async def forget(self, node: str) -> None:
        """A node is gone for good: forget what it told.

        Raises:
            OSError: that cannot be removed.
        """
        await self._sink.forget(node)

    async def serve_sync(self, stream: Stream, node: str) -> None:
        """Tell an agent its node's closure, until its link is gone."""
        with self._counted(node):
            await self._serve_sync(stream, node)

    async def _serve_sync(self, stream: Stream, node: str) -> None:
        closure = _Closure(self._closures, node)
        telling = Telling(stream, closure, hear=lambda event: self._hear(node, event), is_unknown=closure.is_unknown)
        news = asyncio.Event()

        def changed() -> None:
            news.set()
            telling.changed()

        unwatch = self._closures.watch(node, changed)
        try:
            await self._wait(node, news)
            await _within_rules(stream, telling.run(), node)
        finally:
            unwatch()
            self._untold.pop(node, None)

    async def _wait(self, node: str, news: asyncio.Event) -> None:
        """Until the node can be told: the source is ready, and all is known that will be soon."""
        while not self._closures.is_ready:
            await _next(news)
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_S):
                while not self._closures.is_known(node):
                    await _next(news)

    async def serve_facts(self, stream: Stream, node: str) -> None:
        """Let an agent tell the facts of its node, until its link is gone."""
        order = self._orders.setdefault(node, asyncio.Lock())
        with self._counted(node):
            self._sink.up(node)
            try:
                await _within_rules(stream, learn(stream, _Facts(self._sink, node, order, self._tasks)), node)
            finally:
                self._sink.down(node)

    async def serve_observe(self, stream: Stream, node: str) -> None:
        """Leave a node to its kubelet, until the agent's link is gone."""
        order = self._orders.setdefault(node, asyncio.Lock())
        with self._counted(node):
            self._sink.observed(node)
            async with order:
                await _tried(lambda: self._sink.void(node), f"the facts of node {node} cannot be removed")
            log.info("node %s is served by a kubelet: the hub sends it no objects and writes none of its facts", node)
            async for _ in stream:  # nothing comes
                pass

    @contextmanager
    def _counted(self, node: str) -> Iterator[None]:
        """A stream of a node: each holds the keys of its closure, or facts that wait."""
        if self._open[node] >= _MOST_STREAMS:
            raise NotCarried("a sync stream", f"the node has {_MOST_STREAMS} already")
        self._open[node] += 1
        try:
            yield
        finally:
            self._open[node] -= 1
            if not self._open[node]:
                del self._open[node]

    def _hear(self, node: str, event: Event) -> None:
        match event:
            case Untold(ref, _, why):
                self._untold[node][ref] = event
                log.warning("node %s does not get %s: %s", node, ref, why)
            case Confirmed(ref, _) if node in self._untold:
                self._untold[node].pop(ref, None)


class _Closure:
    """One node's closure (`common.sync.Truth`)."""

    def __init__(self, closures: Closures, node: str) -> None:
        self._closures = closures
        self._node = node

    def stamps(self) -> Mapping[Ref, Stamp]:
        return self._closures.stamps(self._node)

    def read(self, ref: Ref) -> Object | None:
        return self._closures.read(ref)

    def is_unknown(self, ref: Ref) -> bool:
        return self._closures.is_unknown(self._node, ref)


class _Facts:
    """One node's facts (`common.sync_stream.Copy`)."""

    def __init__(self, sink: FactSink, node: str, order: asyncio.Lock, tasks: set[asyncio.Task[str]]) -> None:
        self._sink = sink
        self._node = node
        self._order = order
        self._tasks = tasks
        self._refusals = 0

    def sums(self) -> bytes:
        return Digest(self.stamps()).sums()

    def stamps(self) -> Mapping[Ref, Stamp]:
        return self._sink.stamps(self._node)

    async def store(self, changes: Sequence[Change]) -> Mapping[int, str]:
        """Store these one after another. When this is cancelled, the one that is being stored is still stored."""
        refused: dict[int, str] = {}
        for change in changes:
            if isinstance(change, Put | Drop):
                task = asyncio.get_running_loop().create_task(self._store(change), name=f"fact of {self._node}")
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
                if why := await asyncio.shield(task):
                    refused[change.seq] = why
        return refused

    async def settle(self) -> None:
        """Wait for what an earlier stream of the node has begun."""
        async with self._order:
            pass

    async def _store(self, change: Put | Drop) -> str:
        """Store one; why it is refused, or an empty text."""
        async with self._order:
            try:
                await _tried(lambda: self._store_once(change), f"a fact of node {self._node} cannot be stored")
            except ValueError as error:
                self._note_refusal(change.ref, error)
                return str(error) or "it is not accepted"
            return ""

    def _note_refusal(self, ref: Ref, error: ValueError) -> None:
        self._refusals += 1
        if self._refusals <= _MOST_REFUSALS:
            more = "; more of them are not logged" if self._refusals == _MOST_REFUSALS else ""
            log.warning("node %s sent a fact that is not accepted: %s: %s%s", self._node, ref, error, more)

    async def _store_once(self, change: Put | Drop) -> None:
        if isinstance(change, Put):
            await self._sink.store(self._node, change.object)
        else:
            await self._sink.drop(self._node, change.ref, change.uid)


async def _next(news: asyncio.Event) -> None:
    news.clear()
    await news.wait()


async def _tried(work: Callable[[], Awaitable[None]], trouble: str) -> None:
    """Do it, again and again while the disk does not allow it; nothing else is caught."""
    last = ""
    while True:
        try:
            return await work()
        except OSError as error:
            if str(error) != last:
                last = str(error)
                log.error("%s; it is tried again: %s", trouble, last)  # noqa: TRY400  # not a bug
            await asyncio.sleep(_RETRY_S)


async def _within_rules(stream: Stream, sync: Awaitable[None], node: str) -> None:
    """Run one end of a sync; a peer that breaks its rules is told so."""
    try:
        await sync
    except RemoteProtocolError as error:
        log.warning("node %s broke the rules of a sync: %s", node, error)
        stream.end(Status(Code.INVALID_ARGUMENT, f"the rules of a sync were broken: {error}", Origin.HUB))
