"""An inventory: the complete list of one kind of things that a node's driver has. `Inventories` gets them for the book.

Rules of `Inventories`, which asks in the background:

* A node gets one question about a driver's things of a kind at a time, and none within a minute of the last one.
* At most 20 nodes list at the same time. The lists of thousands would delay calls on the hub's links.
* A deletion waits for lists if no node is known to have its thing. It waits from its first try until the hub sends it,
  or until no retry can come any more. A list that began before its first try proves nothing about the thing.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from google.protobuf.message import DecodeError

from cloud.claims.book import MOST_LISTED_BYTES, listed_bytes
from cloud.claims.claims import Claims
from cloud.claims.requests import LONGEST_CHARS
from cloud.claims.rules import LISTINGS, SNAPSHOT, VOLUME, Thing
from cloud.nodes.edge_nodes import Nodes
from cloud.nodes.question import Question
from common.csi.methods import METHODS
from common.errors import CallError

log = logging.getLogger("csi_bridge.hub.placement")

_METHODS: Final = {VOLUME: "/csi.v1.Controller/ListVolumes", SNAPSHOT: "/csi.v1.Controller/ListSnapshots"}

_PAGE = 1_000  # entries of one page: a few hundred kilobytes on a slow link
MOST_PAGES = 1_000  # a faulty driver may return pages without end

_PAGE_LIMIT_S = 60.0

# Of all pages. Without it, a slow node could keep one of the `_AT_ONCE` places for hours.
_LIST_LIMIT_S = 600.0

# An answer up to this size is read at once, within a millisecond. A thread reads the others: the largest takes tens of
# milliseconds.
_AT_ONCE_BYTES = 8_192

_MOST_ENTRIES = 100_000  # Of one answer. 4 MiB hold 70,000 volumes with the shortest ids, or two million empty entries.

_LARGEST_TOKEN_BYTES = 4_096

_AGAIN_S = 60.0

_AT_ONCE = 20

_WAITING_S = 1_200.0  # every retry comes within this time: the resync of external-provisioner takes 15 minutes

# The things of one driver whose deletions wait for lists: with the longest ids 11 MB. Beyond, the hub drops the oldest,
# which waits anew from its next retry on.
_MOST_WAITING = 10_000

_Read = TypeVar("_Read")
_Key = tuple[str, str, str]  # Driver, node and kind


class Listed(NamedTuple):
    """A thing that a driver lists."""

    thing: Thing
    size_bytes: int  # its size; 0 if the driver does not tell it


async def each_page(nodes: Nodes, driver: str, node: str, kind: str, keep: Callable[[list[Listed]], None]) -> None:
    """Read the list of one kind (`LISTED_BY`) of a node's driver, and call `keep` with each page.

    The list is complete only if this returns.

    Raises:
        CallError: the hub cannot reach the node, or the driver has not answered all pages.
    """
    path = _METHODS[kind]
    token = ""
    held_bytes = 0
    for _ in range(MOST_PAGES):
        request = METHODS[path].request(max_entries=_PAGE, starting_token=token).SerializeToString()
        status, body = await nodes.ask_node(node, Question(driver, path, request, f"inventory-{node}", _PAGE_LIMIT_S))
        if not status.ok:
            raise CallError(status.message)
        page, next_token = await in_thread(body, partial(_read, kind))
        held_bytes += listed_bytes(listed.thing for listed in page)
        if held_bytes > MOST_LISTED_BYTES:
            break
        keep(page)
        if not next_token:
            return
        if next_token == token:
            break
        token = next_token
    raise endless(path)


async def in_thread(body: bytes, read: Callable[[bytes], _Read]) -> _Read:
    """Read an answer: a small one at once, a large one in a thread."""
    return read(body) if len(body) <= _AT_ONCE_BYTES else await asyncio.to_thread(read, body)


def parse(method: str, body: bytes) -> Any:  # one of three message classes
    """Parse a page of one of `LISTINGS`. Raises CallError if it does not parse, or is too large for the hub."""
    answer: Any = METHODS[method].response()
    try:
        answer.ParseFromString(body)
    except DecodeError:
        raise CallError("its answer does not parse") from None
    if len(answer.entries) > _MOST_ENTRIES:
        raise CallError(f"its answer to {method} has {len(answer.entries)} entries")
    if len(answer.next_token) > _LARGEST_TOKEN_BYTES:
        raise CallError(f"its answer to {method} has a token of {len(answer.next_token)} bytes")
    return answer


def endless(method: str) -> CallError:
    return CallError(f"its answers to {method} do not end")


def _read(kind: str, body: bytes) -> tuple[list[Listed], str]:
    answer = parse(_METHODS[kind], body)
    id_of = LISTINGS[_METHODS[kind]].id_of
    sized = (
        (id_of(it), it.volume.capacity_bytes if kind == VOLUME else it.snapshot.size_bytes) for it in answer.entries
    )
    return [Listed(Thing(kind, id_), size_bytes) for id_, size_bytes in sized if id_], answer.next_token


class Inventories:
    """Asks nodes for the complete lists of their drivers, and gives them to the book."""

    def __init__(self, nodes: Nodes, claims: Claims) -> None:
        self._nodes = nodes
        self._claims = claims
        self._monotonic = claims.monotonic
        self._asked: dict[_Key, float] = {}  # when a node was asked last, in seconds of the monotonic clock
        self._tasks: dict[_Key, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(_AT_ONCE)
        # By driver: the things whose deletions wait for lists, and since when, the oldest first.
        self._waiting: dict[str, dict[Thing, float]] = {}

    def listed(self, driver: str, thing: Thing) -> AbstractSet[str]:
        """The nodes whose complete lists began after the first try of the deletion of a thing."""
        since = self._waiting.get(driver, {}).get(thing)
        if since is None or self._monotonic() - since >= _WAITING_S:
            return frozenset()
        lists = self._claims.book(driver).lists
        return {node for (node, kind), at in lists.items() if kind == thing.kind and at >= since}

    def deletion_sent(self, driver: str, things: Iterable[Thing]) -> None:
        """Note that a deletion waits no more. A retry waits anew."""
        for thing in things:
            self._waiting.get(driver, {}).pop(thing, None)

    def _wait_for_lists(self, driver: str, thing: Thing, now: float) -> None:
        waiting = self._waiting.setdefault(driver, {})
        if len(thing.id) > LONGEST_CHARS or now - waiting.get(thing, -_WAITING_S) < _WAITING_S:
            return
        waiting.pop(thing, None)  # so that it comes last
        if len(waiting) >= _MOST_WAITING:
            del waiting[next(iter(waiting))]
        waiting[thing] = now

    def ask(self, driver: str, kind: str, nodes: Iterable[str], *, deletes: Iterable[Thing] = ()) -> None:
        """Ask nodes for a list of a kind, unless they were asked a moment ago. A deletion of `deletes` waits for it."""
        now = self._monotonic()
        for thing in deletes:
            self._wait_for_lists(driver, thing, now)
        for node in nodes:
            key = (driver, node, kind)
            if now - self._asked.get(key, -_AGAIN_S) >= _AGAIN_S and key not in self._tasks:
                self._asked[key] = now
                task = self._tasks[key] = asyncio.create_task(self._take(*key), name=f"list-{node}")
                task.add_done_callback(partial(self._ended, key))

    def forget(self, node: str, driver: str = "") -> None:
        """Drop the questions to a node, or about one driver there."""
        for key in [key for key in self._asked if key[1] == node and driver in ("", key[0])]:
            del self._asked[key]
            if key in self._tasks:
                self._tasks[key].cancel()

    async def settled(self) -> None:
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await self.settled()

    def _ended(self, key: _Key, _: asyncio.Task[None]) -> None:
        del self._tasks[key]

    async def _take(self, driver: str, node: str, kind: str) -> None:
        things: list[Thing] = []
        try:
            async with self._slots:
                began = self._claims.now()
                at = self._monotonic()
                async with asyncio.timeout(_LIST_LIMIT_S):
                    await each_page(
                        self._nodes, driver, node, kind, lambda page: things.extend(it.thing for it in page)
                    )
            await self._claims.record_list(driver, node, kind, things, began=began, at=at)
        except (CallError, TimeoutError) as error:
            why = str(error) or f"its pages take longer than {_LIST_LIMIT_S:g} s"
            log.warning("no list of each %s of driver %s on edge node %s: %s", kind, driver, node, why)
        else:
            log.info("edge node %s has listed each %s of driver %s: %d", node, kind, driver, len(things))
