"""The hub's ends of the sync streams: each agent gets its node's closure and sends its node's facts.

Rules:

* Until the source is ready, no agent gets anything, because a missing object may only be late.
* An object that the source does not know yet comes later, and the node keeps its copy of it (`common.objects.sync`).
* A node's facts are stored one after another, across its streams, too: a new stream begins when the facts of an old one
  are stored.
* A fact that is not acceptable is refused by name; the others go on. If the disk fails, the hub tries again.
* Before a stream changes a fact, the sink knows which machine sends it. Another one than before does not clear what
  that one had in use (`cloud.sync.fact_table`).
* An agent beside a kubelet sends no facts, and its node's earlier facts are void.
* If a peer breaks the rules of a sync, its stream ends with the reason.
"""

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from weakref import WeakValueDictionary

from cloud.sync.closures import Closures
from cloud.sync.facts import FactSink
from common.errors import RemoteProtocolError, not_carried
from common.objects.objects import Object, Ref, Stamp
from common.objects.sync import Event, Untold
from common.objects.sync_messages import Change, Drop, Put
from common.objects.sync_stream import WITHOUT_CREDENTIALS, Telling, learn
from common.session.link import Stream
from common.status import Code, Origin, Status

log = logging.getLogger("csi_bridge.hub.sync")

RETRY_S = 5.0  # the wait before the next try to store a fact: people have to make room on the disk

_MOST_STREAMS = 4  # The most streams of one node. An agent has two; those of an ending link may still be open.
_MOST_REFUSALS = 10  # the refusals of one stream that are logged: a node could fill the hub's disk with them


class SyncServer:
    """Serves the streams of all nodes."""

    def __init__(self, closures: Closures, sink: FactSink) -> None:
        self._closures = closures
        self._sink = sink
        # A lock for each node, held while one of its facts is being stored
        self._orders: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._tasks: set[asyncio.Task[str]] = set()  # tasks that store facts; they may outlive their streams
        self._open: Counter[str] = Counter()
        # The objects that connected nodes cannot get, by node, each in a state that it had on the present stream
        self._untold: defaultdict[str, dict[Ref, Untold]] = defaultdict(dict)

    def problems(self) -> list[str]:
        return [
            f"node {node} does not get {ref}: {one.why}"
            for node, untold in sorted(self._untold.items())
            for ref, one in untold.items()
            if self._closures.stamps(node).get(ref) == one.stamp
        ]

    def knows(self, node: str) -> bool:
        return bool(self._sink.stamps(node))

    async def forget(self, node: str) -> None:
        await self._sink.forget(node)

    async def serve_sync(self, stream: Stream, node: str) -> None:
        is_unknown = partial(self._closures.is_unknown, node)
        telling = Telling(
            stream, _ClosureTruth(self._closures, node), on_event=partial(self._on_event, node), is_unknown=is_unknown
        )
        news = asyncio.Event()

        def changed() -> None:
            news.set()
            telling.changed()

        with self._counted(node):
            assert stream.opened is not None
            with_credentials = stream.opened.subject != WITHOUT_CREDENTIALS
            unwatch = self._closures.watch(node, changed, with_credentials=with_credentials)
            try:
                while not self._closures.is_ready:
                    news.clear()
                    await news.wait()
                await _within_rules(stream, telling.run(), node)
            finally:
                unwatch()
                self._untold.pop(node, None)

    async def serve_facts(self, stream: Stream, node: str) -> None:
        order = self._orders.setdefault(node, asyncio.Lock())
        with self._counted(node):
            await self._note_machine(stream, node, order)
            self._sink.up(node)
            facts = _Facts(self._sink, node, order, self._tasks)
            try:
                await _within_rules(stream, learn(stream, facts), node)
            finally:
                self._sink.down(node)

    async def serve_observe(self, stream: Stream, node: str) -> None:
        order = self._orders.setdefault(node, asyncio.Lock())
        with self._counted(node):
            await self._note_machine(stream, node, order)
            self._sink.observed(node)
            trouble = f"the facts of node {node} cannot be removed"
            async with order:
                await _tried(partial(self._sink.table.remove_all, node), trouble)
            log.info("node %s is served by a kubelet: the hub writes none of its facts", node)
            async for _ in stream:  # the agent sends nothing
                pass

    async def _note_machine(self, stream: Stream, node: str, order: asyncio.Lock) -> None:
        note_machine = partial(self._sink.table.note_machine, node, stream.link.peer.instance)
        async with order:
            try:
                await _tried(note_machine, f"the machine of node {node} cannot be stored")
            except ValueError as error:  # no room for what its earlier machines had in use
                raise not_carried("a sync stream", str(error)) from error

    @contextmanager
    def _counted(self, node: str) -> Iterator[None]:
        # Too many are refused: each holds the keys of a closure, or waiting facts.
        if self._open[node] >= _MOST_STREAMS:
            raise not_carried("a sync stream", f"the node has {_MOST_STREAMS} already")
        self._open[node] += 1
        try:
            yield
        finally:
            self._open[node] -= 1
            if not self._open[node]:
                del self._open[node]

    def _on_event(self, node: str, event: Event) -> None:
        if isinstance(event, Untold):
            self._untold[node][event.ref] = event
            log.warning("node %s does not get %s: %s", node, event.ref, event.why)


class _ClosureTruth:
    """One node's closure (`common.objects.sync.Truth`)."""

    def __init__(self, closures: Closures, node: str) -> None:
        self._closures = closures
        self._node = node

    def stamps(self) -> Mapping[Ref, Stamp]:
        return self._closures.stamps(self._node)

    def read(self, ref: Ref) -> Object | None:
        return self._closures.read(ref)


class _Facts:
    """One node's facts (`common.objects.sync_stream.Copy`)."""

    def __init__(self, sink: FactSink, node: str, order: asyncio.Lock, tasks: set[asyncio.Task[str]]) -> None:
        self._sink = sink
        self._node = node
        self._order = order
        self._tasks = tasks
        self._refusals = 0

    def stamps(self) -> Mapping[Ref, Stamp]:
        return self._sink.stamps(self._node)

    async def store(self, changes: Sequence[Change]) -> Mapping[int, str]:
        """Store these changes one after another. If this is cancelled, the present one is still stored."""
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
        async with self._order:
            pass

    async def _store(self, change: Put | Drop) -> str:
        async with self._order:
            work: Callable[[], Awaitable[object]] = (
                partial(self._sink.store, self._node, change.object)
                if isinstance(change, Put)
                else partial(self._sink.drop, self._node, change.ref, change.uid)
            )
            try:
                await _tried(work, f"a fact of node {self._node} cannot be stored")
            except ValueError as error:
                self._refusals += 1
                if self._refusals <= _MOST_REFUSALS:
                    more = "; more of them are not logged" if self._refusals == _MOST_REFUSALS else ""
                    what = "node %s sent a fact that is not accepted: %s: %s%s"
                    log.warning(what, self._node, change.ref, error, more)
                return str(error) or "it is not accepted"
            return ""


async def _tried(work: Callable[[], Awaitable[object]], trouble: str) -> None:
    last = ""
    while True:
        try:
            await work()
        except OSError as error:
            if str(error) != last:
                last = str(error)
                log.error("%s; it is tried again: %s", trouble, last)  # noqa: TRY400  # not a bug
            await asyncio.sleep(RETRY_S)
        else:
            return


async def _within_rules(stream: Stream, sync: Awaitable[None], node: str) -> None:
    try:
        await sync
    except RemoteProtocolError as error:
        log.warning("node %s broke the rules of a sync: %s", node, error)
        stream.end(Status(Code.INVALID_ARGUMENT, f"the rules of a sync were broken: {error}", Origin.HUB))
