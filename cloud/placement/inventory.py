"""An inventory: all that a node's driver lists, read to its end; and the inventories that the book learns.

Rules of `Inventories`, which asks in the background:

* One node gets one question of a kind at a time, and none within a minute of the last one.
* At most 20 nodes list at once: the lists of thousands would fill the hub's links with answers that can wait.
* The deletion of a thing that no node is known to have is sought: from its first try until the hub sends it, or until
  no retry can come any more. Lists that began before that prove nothing about it.
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
MOST_PAGES = 1_000  # a driver that goes on for ever has no end of its own

_PAGE_LIMIT_S = 60.0

# Of all pages. A node that answers as late as it may would else hold a place of the others for hours.
_LIST_LIMIT_S = 600.0

# An answer up to this size is read at once, within a millisecond. A thread reads the others: the largest takes tens of
# milliseconds.
_AT_ONCE_BYTES = 8_192

_MOST_ENTRIES = 100_000  # Of one answer. 4 MiB hold 70,000 volumes with the shortest ids, or two million empty entries.

_LARGEST_TOKEN_BYTES = 4_096

_AGAIN_S = 60.0

_AT_ONCE = 20

_SOUGHT_S = 1_200.0  # every retry comes within this time: the resync of external-provisioner takes 15 minutes

# The things of one driver that are sought: with the longest ids 11 MB. Beyond, the oldest one begins anew.
_MOST_SOUGHT = 10_000

_Read = TypeVar("_Read")
_Key = tuple[str, str, str]  # Driver, node and kind


class Listed(NamedTuple):
    """A thing that a driver lists."""

    thing: Thing
    size_bytes: int  # its size; 0 if the driver does not tell it


async def each_page(nodes: Nodes, driver: str, node: str, kind: str, keep: Callable[[list[Listed]], None]) -> None:
    """Call `keep` with each page of all that the driver has on a node, of a kind in `LISTED_BY`.

    Only the return says that nothing is missing.

    Raises:
        CallError: the node cannot be reached, or the driver did not answer all of it.
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
    """A page of one of `LISTINGS`. Raises CallError: it does not parse, or is too large for the hub."""
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
    """Asks the nodes of every driver for all their things of a kind, for the book."""

    def __init__(self, nodes: Nodes, claims: Claims) -> None:
        self._nodes = nodes
        self._claims = claims
        self._monotonic = claims.monotonic
        self._asked: dict[_Key, float] = {}  # when a node was asked last, in seconds of the monotonic clock
        self._tasks: dict[_Key, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(_AT_ONCE)
        # By driver: the things that are sought, and since when, the oldest first.
        self._sought: dict[str, dict[Thing, float]] = {}

    def listed(self, driver: str, thing: Thing) -> AbstractSet[str]:
        """The nodes whose complete lists have begun since a thing is sought."""
        since = self._sought.get(driver, {}).get(thing)
        if since is None or self._monotonic() - since >= _SOUGHT_S:
            return frozenset()
        lists = self._claims.book(driver).lists
        return {node for (node, kind), at in lists.items() if kind == thing.kind and at >= since}

    def sent(self, driver: str, things: Iterable[Thing]) -> None:
        """Seek these things no more: their deletion is sent. A retry begins anew."""
        for thing in things:
            self._sought.get(driver, {}).pop(thing, None)

    def _seek(self, driver: str, thing: Thing, now: float) -> None:
        sought = self._sought.setdefault(driver, {})
        if len(thing.id) > LONGEST_CHARS or now - sought.get(thing, -_SOUGHT_S) < _SOUGHT_S:
            return
        sought.pop(thing, None)  # so that it comes last
        if len(sought) >= _MOST_SOUGHT:
            del sought[next(iter(sought))]
        sought[thing] = now

    def ask(self, driver: str, kind: str, nodes: Iterable[str], *, deletes: Iterable[Thing] = ()) -> None:
        """Ask nodes for their things of a kind, unless they were asked a moment ago. Seek the things of a deletion."""
        now = self._monotonic()
        for thing in deletes:
            self._seek(driver, thing, now)
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
