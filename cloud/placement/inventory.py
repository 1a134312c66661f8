"""An inventory: the volumes or snapshots that a node's driver lists, page by page (CSI spec, ListVolumes)."""

import asyncio
from typing import Any, Final

from google.protobuf.message import DecodeError, Message

from cloud.node_call import Call
from cloud.placement.claim_store import LISTED_BYTES, MOST_LISTED_BYTES
from cloud.placement.question import CallNode, ask
from cloud.placement.requests import SNAPSHOT, VOLUME, Thing
from common.csi.methods import METHODS

_METHODS: Final = {VOLUME: "/csi.v1.Controller/ListVolumes", SNAPSHOT: "/csi.v1.Controller/ListSnapshots"}

_PAGE = 1_000
"""Entries of one page: a few hundred kilobytes on a slow link."""

_MOST_PAGES = 1_000
"""A driver that goes on for ever has no end of its own."""

_PAGE_LIMIT_S = 60.0


class Unlisted(Exception):
    """A node's driver did not answer with a whole list. The text says why."""


async def take(call: CallNode, driver: str, node: str, kind: str) -> list[Thing]:
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
    method, token, things, size_bytes = METHODS[_METHODS[kind]], "", list[Thing](), 0
    for _ in range(_MOST_PAGES):
        request: Any = method.request(max_entries=_PAGE, starting_token=token)
        page = Call(driver, method.path, request.SerializeToString(), f"inventory-{node}", _PAGE_LIMIT_S)
        ids, next_token = await asyncio.to_thread(_read, kind, method.response, await _ask(call, node, page))
        things += [Thing(kind, id_) for id_ in ids]
        size_bytes += sum(len(id_) + LISTED_BYTES for id_ in ids)
        if not next_token:
            return things
        if next_token == token or size_bytes > MOST_LISTED_BYTES:
            break
        token = next_token
    raise Unlisted(f"its answers to {method.path} do not end")


async def _ask(call: CallNode, node: str, page: Call) -> bytes:
    """The one message of an answer."""
    status, body = await ask(call, node, page)
    if not status.ok:
        raise Unlisted(status.message)
    return body


def _read(kind: str, page: type[Message], body: bytes) -> tuple[list[str], str]:
    """The ids that one answer lists, and the token of the next one. Of the largest it takes tens of milliseconds."""
    answer: Any = page()
    try:
        answer.ParseFromString(body)
    except DecodeError:
        raise Unlisted("its answer does not parse") from None
    ids = (entry.volume.volume_id if kind == VOLUME else entry.snapshot.snapshot_id for entry in answer.entries)
    return [id_ for id_ in ids if id_], answer.next_token
