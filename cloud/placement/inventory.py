"""An inventory: all that a node's driver lists by one method, page by page (CSI spec, ListVolumes)."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple, TypeVar

from google.protobuf.message import DecodeError

from cloud.node_call import Call
from cloud.placement.claim_store import LISTED_BYTES, MOST_LISTED_BYTES
from cloud.placement.question import CallNode, ask
from cloud.placement.requests import LISTINGS, SNAPSHOT, VOLUME, Thing
from common.csi.methods import METHODS

_METHODS: Final = {VOLUME: "/csi.v1.Controller/ListVolumes", SNAPSHOT: "/csi.v1.Controller/ListSnapshots"}

_PAGE = 1_000
"""Entries of one page: a few hundred kilobytes on a slow link."""

_MOST_PAGES = 1_000
"""A driver that goes on for ever has no end of its own."""

_PAGE_LIMIT_S = 60.0

_AT_ONCE_BYTES = 8_192
"""An answer up to this size is read at once, within a millisecond. A thread reads the others: the largest takes tens of
milliseconds."""

_MOST_ENTRIES = 100_000
"""Of one answer. 4 MiB hold 70,000 volumes with the shortest ids, or two million empty entries."""

_LARGEST_ENTRY_BYTES = 65_536
"""An entry has a few ids and a map of 4 KiB (CSI spec, "Size Limits"). It must fit into an answer for the sidecars."""

_LARGEST_TOKEN_BYTES = 4_096
"""The hub sends a token back as it is. It keeps one for each node that it asks."""

_Item = TypeVar("_Item")


class Unlisted(Exception):
    """A node's driver did not answer with a whole list. The text says why."""


class Entry(NamedTuple):
    """One entry of a list.

    Attributes:
        id: the id of its volume or snapshot; may be empty.
        wire: an answer with this entry alone, serialized. Answers joined are one answer with all their entries.
    """

    id: str
    wire: bytes


class Listed(NamedTuple):
    """A thing that a driver lists.

    Attributes:
        thing: the thing.
        size_bytes: its size; 0 if the driver does not tell it.
    """

    thing: Thing
    size_bytes: int


async def take(call: CallNode, driver: str, node: str, kind: str) -> list[Thing]:
    """Everything of a kind that the driver has on a node. Arguments and errors are those of `each_page`."""
    things: list[Thing] = []
    await each_page(call, driver, node, kind, lambda page: things.extend(listed.thing for listed in page))
    return things


async def each_page(call: CallNode, driver: str, node: str, kind: str, keep: Callable[[list[Listed]], None]) -> None:
    """Hand on everything of a kind that the driver has on a node. Only the return says that nothing is missing.

    Args:
        call: sends a call to a node.
        driver: the driver's name.
        node: the node.
        kind: one of `LISTED_BY`.
        keep: called with each page.

    Raises:
        Unlisted: the driver did not answer all of it.
        CallError: the node cannot be reached.
    """
    path, size_bytes = _METHODS[kind], 0
    id_of = LISTINGS[path].id_of

    def found(body: bytes) -> tuple[list[Listed], str]:
        answer = _parse(path, body)
        told = ((id_of(entry), _size_of(kind, entry)) for entry in answer.entries)
        return [Listed(Thing(kind, id_), size) for id_, size in told if id_], answer.next_token

    def check(page: list[Listed]) -> None:
        nonlocal size_bytes
        size_bytes += sum(len(listed.thing.id) + LISTED_BYTES for listed in page)
        if size_bytes > MOST_LISTED_BYTES:
            raise _endless(path)
        keep(page)

    await _read_pages(call, Call(driver, path, b"", f"inventory-{node}", _PAGE_LIMIT_S), node, found, check)


async def entries(
    call: CallNode,
    driver: str,
    node: str,
    method: str,
    request: bytes = b"",
    *,
    edit: Callable[[bytes], bytes] = lambda body: body,
    keep: Callable[[int], None] = lambda _size_bytes: None,
) -> list[Entry]:
    """Every entry that the driver lists on a node.

    Args:
        call: sends a call to a node.
        driver: the driver's name.
        node: the node.
        method: the gRPC path, one of `LISTINGS`.
        request: the other fields of the request.
        edit: changes an answer before it is read. It may run in a thread.
        keep: called with the size of each page. It may raise `Unlisted`.

    Raises:
        Unlisted: the driver did not answer all of it.
        CallError: the node cannot be reached.
    """
    whole: list[Entry] = []

    def found(body: bytes) -> tuple[list[Entry], str]:
        answer = _parse(method, edit(body))
        return list(_entries(method, answer)), answer.next_token

    def check(page: Iterable[Entry]) -> None:
        keep(sum(len(entry.id) + len(entry.wire) + LISTED_BYTES for entry in page))
        whole.extend(page)

    await _read_pages(call, Call(driver, method, request, f"list-{node}", _PAGE_LIMIT_S), node, found, check)
    return whole


async def _read_pages(
    call: CallNode,
    first: Call,
    node: str,
    read: Callable[[bytes], tuple[list[_Item], str]],
    keep: Callable[[list[_Item]], None],
) -> None:
    """Read each page.

    Args:
        call: sends a call to a node.
        first: the question, without page size and token.
        node: the node.
        read: the items of an answer, and the next token. It may run in a thread.
        keep: called with each page's items. It may raise an error.
    """
    method, token = METHODS[first.method], ""
    for _ in range(_MOST_PAGES):
        request: Any = method.request.FromString(first.request)
        request.max_entries, request.starting_token = _PAGE, token
        status, body = await ask(call, node, first._replace(request=request.SerializeToString()))
        if not status.ok:
            raise Unlisted(status.message)
        is_small = len(body) <= _AT_ONCE_BYTES
        page, next_token = read(body) if is_small else await asyncio.to_thread(read, body)
        keep(page)
        if not next_token:
            return
        if next_token == token:
            break
        if len(next_token) > _LARGEST_TOKEN_BYTES:
            raise Unlisted(f"its answer to {method.path} has a token of {len(next_token)} bytes")
        token = next_token
    raise _endless(method.path)


def _size_of(kind: str, entry: Any) -> int:
    size_bytes: int = entry.volume.capacity_bytes if kind == VOLUME else entry.snapshot.size_bytes
    return size_bytes


def _endless(method: str) -> Unlisted:
    return Unlisted(f"its answers to {method} do not end")


def _entries(method: str, answer: Any) -> Iterator[Entry]:
    page, id_of = METHODS[method].response, LISTINGS[method].id_of
    for entry in answer.entries:
        alone: Any = page()
        alone.entries.append(entry)
        wire = alone.SerializeToString()
        if len(wire) > _LARGEST_ENTRY_BYTES:
            raise Unlisted(f"its answer to {method} has an entry of {len(wire)} bytes")
        yield Entry(id_of(entry), wire)


def _parse(method: str, body: bytes) -> Any:  # one of three message classes
    answer: Any = METHODS[method].response()
    try:
        answer.ParseFromString(body)
    except DecodeError:
        raise Unlisted("its answer does not parse") from None
    if len(answer.entries) > _MOST_ENTRIES:
        raise Unlisted(f"its answer to {method} has {len(answer.entries)} entries")
    return answer
