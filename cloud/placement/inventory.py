"""An inventory: the volumes or snapshots that a node's driver lists, page by page (CSI spec, ListVolumes)."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError, Message

from cloud.node_call import Call, Caller, Reply
from cloud.placement.claim_store import LISTED_BYTES, MOST_LISTED_BYTES
from cloud.placement.requests import SNAPSHOT, VOLUME, Thing
from common.csi.methods import METHODS
from common.status import Status

_METHODS: Final = {VOLUME: "/csi.v1.Controller/ListVolumes", SNAPSHOT: "/csi.v1.Controller/ListSnapshots"}

_PAGE = 1_000
"""Entries of one page: a few hundred kilobytes on a slow link."""

_MOST_PAGES = 1_000
"""A driver that goes on for ever has no end of its own."""

_PAGE_LIMIT_S = 60.0


class Unlisted(Exception):
    """A node's driver did not answer with a whole list. The text says why."""


class Listed(NamedTuple):
    """A thing that a driver lists.

    Attributes:
        thing: the thing.
        size_bytes: its size; 0 if the driver does not tell it.
    """

    thing: Thing
    size_bytes: int


async def take(call: Callable[[str, Call, Caller], Reply], driver: str, node: str, kind: str) -> list[Thing]:
    """Everything of a kind that the driver has on a node.

    Args:
        call: sends a call to a node (`cloud.edge_nodes.Nodes.call`).
        driver: the driver's name.
        node: the node.
        kind: one of `LISTED_BY`.

    Raises:
        Unlisted: the driver did not answer all of it.
        CallError: the node cannot be reached.
    """
    return [listed.thing async for page in pages(call, driver, node, kind) for listed in page]


async def pages(
    call: Callable[[str, Call, Caller], Reply], driver: str, node: str, kind: str
) -> AsyncGenerator[list[Listed]]:
    """The same page by page. Only the end of the last one says that nothing is missing.

    Arguments and errors are those of `take`.
    """
    method, token, size_bytes = METHODS[_METHODS[kind]], "", 0
    for _ in range(_MOST_PAGES):
        request: Any = method.request(max_entries=_PAGE, starting_token=token)
        page = Call(driver, method.path, request.SerializeToString(), f"inventory-{node}", _PAGE_LIMIT_S)
        listed, next_token = await asyncio.to_thread(_read, kind, method.response, await _ask(call, node, page))
        yield listed
        size_bytes += sum(len(it.thing.id) + LISTED_BYTES for it in listed)
        if not next_token:
            return
        if next_token == token or size_bytes > MOST_LISTED_BYTES:
            break
        token = next_token
    raise Unlisted(f"its answers to {method.path} do not end")


async def _ask(call: Callable[[str, Call, Caller], Reply], node: str, page: Call) -> bytes:
    """The one message of an answer."""
    answer = _Answer()
    reply = call(node, page, answer)
    try:
        status, body = await answer.whole
    except BaseException:
        reply.cancel()
        raise
    reply.acknowledge(delivered=True)
    if not status.ok:
        raise Unlisted(status.message)
    return body


class _Answer:
    """Takes an answer of one message (`cloud.node_call.Caller`).

    Attributes:
        whole: the status and the message, once both have come.
    """

    def __init__(self) -> None:
        self.whole: asyncio.Future[tuple[Status, bytes]] = asyncio.get_running_loop().create_future()

    def sent(self) -> None:
        """Nothing to do."""

    def answered(self, _message: bytes) -> None:
        """Take a message that is not the last one."""
        self.failed(Unlisted("it answered with several messages"))

    def ended(self, status: Status, message: bytes | None) -> None:
        """Take the end."""
        if not self.whole.done():
            self.whole.set_result((status, message or b""))

    def failed(self, error: Exception) -> None:
        """Take an error."""
        if not self.whole.done():
            self.whole.set_exception(error)


def _read(kind: str, page: type[Message], body: bytes) -> tuple[list[Listed], str]:
    """The things that one answer lists, and the token of the next one. Of the largest it takes tens of milliseconds."""
    answer: Any = page()
    try:
        answer.ParseFromString(body)
    except DecodeError:
        raise Unlisted("its answer does not parse") from None
    if kind == VOLUME:
        told = ((entry.volume.volume_id, entry.volume.capacity_bytes) for entry in answer.entries)
    else:
        told = ((entry.snapshot.snapshot_id, entry.snapshot.size_bytes) for entry in answer.entries)
    return [Listed(Thing(kind, id_), size_bytes) for id_, size_bytes in told if id_], answer.next_token
