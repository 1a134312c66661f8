"""The pages of ListVolumes and its like, for a driver whose nodes each have things of their own.

Rules:

* A list goes from node to node, in the order of their names. A page is one page of one node's driver.
* The hub asks the next 64 nodes ahead, because external-attacher has one deadline for all pages of a list.
* When a list begins, the hub drops pages that it asked ahead for an earlier list. So a list has all that was made
  before it began.
* If a node does not answer, the hub refuses the call and names the node. ListVolumes may instead have the node's last
  complete list, if that came in one page and within the last hour. The hub finds no id by such an old list.
* A thing belongs to the node that made it, else to the node that its PersistentVolume is for. The hub leaves out
  another node's entry of this id, because external-attacher would believe it.
* For operators, the hub keeps the faults of each node's part in the last list of each driver.
"""

import asyncio
import hashlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError

from cloud.claims.claims import Claims
from cloud.claims.rules import LISTINGS, Thing
from cloud.nodes.edge_nodes import Nodes
from cloud.nodes.question import Answer, Question
from cloud.placement import page_tokens
from cloud.placement.decisions import Route
from cloud.placement.inventory import MOST_PAGES, endless, in_thread, parse
from cloud.placement.page_tokens import PageToken
from cloud.placement.segment import answer_with_topology
from common.csi.csi_pb2 import ControllerServiceCapability
from common.csi.methods import METHODS
from common.errors import CallError, not_listed, timestamp, token_unknown
from common.observe.logs import of_peer
from common.session.limits import has_room
from common.status import Code, Status

log = logging.getLogger("csi_bridge.hub.placement")

_LIST_VOLUMES: Final = "/csi.v1.Controller/ListVolumes"

_SHARE: Final = 0.9  # A node has this share of the caller's time. The hub answers in the rest.
_TIME_S: Final = 60.0  # the time of a caller that sets none
_WITH_LAST_S: Final = 5.0  # the time of a node with a last list: a third of external-attacher's time for all nodes

_LAST_S: Final = 3_600.0

_LASTS_BYTES: Final = 64 * 1_048_576  # all last lists together: 250,000 volumes with their topology
_AHEAD_BYTES: Final = 262_144  # a larger page is not kept ahead, but asked for again when its turn comes
_MOST_AHEAD: Final = 16  # The lists, of all drivers, whose next pages are kept ahead. Each sidecar needs one.
_STEP: Final = 200  # after so many entries, the hub serves its other calls
_SHOWN_CHARS: Final = 400  # ids are cut here

_OK: Final = Status(Code.OK)


class _Last(NamedTuple):
    """A node's last complete list: the driver's answer, and when the hub asked for it, in seconds since the epoch."""

    body: bytes
    began: float


class _Page(NamedTuple):
    answer: Any  # the message, with the driver's own token
    note: str = ""  # why it is the node's last list; empty: the driver has just answered


class ListPages:
    """Answers the lists of all drivers, page by page."""

    def __init__(self, nodes: Nodes, claims: Claims, elsewhere: Callable[[str, Thing, str], str]) -> None:
        """`elsewhere` returns another node that a thing's PersistentVolume is for, if it is not for the given one."""
        self._nodes = nodes
        self._claims = claims
        self._elsewhere = elsewhere
        # By digest of the list, and by node: the first pages that are asked ahead.
        self._ahead: dict[bytes, dict[str, asyncio.Task[_Page | None]]] = {}
        self._lasts: dict[tuple[str, str, bytes], _Last] = {}  # by node and driver, and by digest; the oldest first
        self._lasts_bytes = 0
        self._notes: dict[tuple[str, str, str], str] = {}  # by node, driver and method: a sentence for people

    async def page(self, call: Question, routes: Sequence[Route]) -> Answer:
        """The page that a call asks for.

        `routes` has the node of this page, and the next nodes of the list. Without routes, the list is at its end.

        Raises:
            CallError: the node has not given its entries, or does not know the token any more.
        """
        if not routes:
            return _OK, METHODS[call.method].response().SerializeToString()
        node = routes[0].node
        token = _token(call)
        at = page_tokens.read(token)
        if at is None or at.node != node:
            at = PageToken(node)
        try:
            page = await self._of_node(call, routes, at, is_new=not token)
            if page.answer.next_token and at.pages + 1 >= MOST_PAGES:
                raise endless(call.method)
        except CallError as error:
            if error.code == Code.ABORTED:  # `token_unknown`
                raise
            what = f"{_short(call)} is refused, as it would lack this node's entries"
            self._note(call, node, f"{what}: {error}")
            raise not_listed(call.driver, call.method, {node: str(error)}) from error
        foreign = await self._leave_out(call, node, page.answer)
        if page.note or foreign or not at.own:
            self._note(call, node, "; ".join(filter(None, (page.note, foreign))))
        if page.answer.next_token:
            page.answer.next_token = str(PageToken(node, at.pages + 1, page.answer.next_token))
        elif len(routes) > 1:
            page.answer.next_token = str(PageToken(routes[1].node))
        return _OK, page.answer.SerializeToString()

    async def of_elected(self, call: Question, route: Route) -> Answer:
        """The page of an elected node: its driver's answer, with a token of the hub. Raises CallError."""
        at = page_tokens.read(_token(call))
        question = _at_token(call, at.own) if at is not None else call
        status, body = await self._nodes.ask_node(route.node, question._replace(epoch=route.epoch))
        if not status.ok:
            return status, None
        try:
            answer: Any = METHODS[call.method].response.FromString(body)
        except DecodeError:
            return status, body
        if answer.next_token:
            answer.next_token = str(PageToken(route.node, own=answer.next_token))
        return status, answer.SerializeToString()

    def problems(self, node: str) -> Iterator[str]:
        """The faults of a node's part in the last list of each driver, a sentence each."""
        return (note for (its, _, _), note in self._notes.items() if its == node)

    def forget(self, node: str, driver: str = "") -> None:
        for last in [key for key in self._lasts if key[0] == node and driver in ("", key[1])]:
            self._drop(last)
        for note in [key for key in self._notes if key[0] == node and driver in ("", key[1])]:
            del self._notes[note]

    async def close(self) -> None:
        tasks = [task for ahead in self._ahead.values() for task in ahead.values()]
        self._ahead.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _of_node(self, call: Question, routes: Sequence[Route], at: PageToken, *, is_new: bool) -> _Page:
        first = _at_token(call, "")
        ahead = self._asked_ahead(_digest(first), is_new=is_new)
        task = None if at.own else ahead.pop(at.node, None)
        for later in routes[1:]:
            if later.node not in ahead:
                ahead[later.node] = asyncio.create_task(self._first_ahead(first, later), name=f"list-{later.node}")
                # Reads the error: asyncio complains of one that nobody reads, and perhaps nobody asks for this page.
                ahead[later.node].add_done_callback(lambda task: task.cancelled() or task.exception())
        if at.own:
            return await self._live(_at_token(call, at.own), routes[0])
        return (await task if task is not None else None) or await self._first(first, routes[0])

    def _asked_ahead(self, digest: bytes, *, is_new: bool) -> dict[str, asyncio.Task[_Page | None]]:
        old = [digest] if is_new and digest in self._ahead else []
        if digest not in self._ahead and len(self._ahead) >= _MOST_AHEAD:
            old.append(next(iter(self._ahead)))
        for each in old:
            for task in self._ahead.pop(each).values():
                task.cancel()
        return self._ahead.setdefault(digest, {})

    async def _first_ahead(self, call: Question, route: Route) -> _Page | None:
        page = await self._first(call, route)
        return page if page.answer.ByteSize() <= _AHEAD_BYTES else None

    async def _first(self, call: Question, route: Route) -> _Page:
        needed = LISTINGS[call.method].capability
        member = route.member
        if member is not None and member.vote and needed not in member.lists:
            raise CallError(f"its driver lacks the capability {ControllerServiceCapability.RPC.Type.Name(needed)}")
        last = self._lasts.get((route.node, call.driver, _digest(call)))
        if last is not None and self._claims.now() - last.began >= _LAST_S:
            last = None
        share_s = _SHARE * (_TIME_S if call.timeout_s is None else call.timeout_s)
        try:
            async with asyncio.timeout(share_s if last is None else min(share_s, _WITH_LAST_S)):
                return await self._live(call, route)
        except TimeoutError:
            why = "it did not answer in time"
        except CallError as error:
            why = str(error)
        if last is None:
            raise CallError(why)
        note = f"{_short(call)} has this node's entries from {timestamp(last.began)}, as there are no newer ones: {why}"
        return _Page(await _read(call.method, route, last.body), note)

    async def _live(self, call: Question, route: Route) -> _Page:
        began = self._claims.now()
        status, body = await self._nodes.ask_node(route.node, call)
        if status.code == Code.ABORTED and _token(call):
            raise token_unknown(call.method)
        if not status.ok:
            raise CallError(status.message)
        answer = await _read(call.method, route, body)
        if call.method == _LIST_VOLUMES and not _token(call):
            self._keep((route.node, call.driver, _digest(call)), _Last(body, began), is_whole=not answer.next_token)
        return _Page(answer)

    def _keep(self, key: tuple[str, str, bytes], last: _Last, *, is_whole: bool) -> None:
        self._drop(key)
        while self._lasts and last.began - next(iter(self._lasts.values())).began >= _LAST_S:
            self._drop(next(iter(self._lasts)))
        own = len(last.body)
        together = self._lasts_bytes + len(last.body)
        if is_whole and has_room(own, together, _LASTS_BYTES, sharers=len(self._lasts) + 1):
            self._lasts[key], self._lasts_bytes = last, together

    def _drop(self, key: tuple[str, str, bytes]) -> None:
        if key in self._lasts:
            self._lasts_bytes -= len(self._lasts.pop(key).body)

    async def _leave_out(self, call: Question, node: str, answer: Any) -> str:
        # Returns a sentence about the removed entries; empty if there are none.
        kind = LISTINGS[call.method].kind
        id_of = LISTINGS[call.method].id_of
        entries = list(answer.entries)
        own = []
        foreign = list[str]()
        for start in range(0, len(entries), _STEP):
            step = [(entry, Thing(kind, id_of(entry))) for entry in entries[start : start + _STEP]]
            book = self._claims.book(call.driver)
            for entry, thing in step:
                makers = book.makers(thing)
                owner = makers[0] if makers and node not in makers else self._elsewhere(call.driver, thing, node)
                if owner:
                    foreign.append(f"{thing}, which is on edge node {owner}")
                else:
                    own.append(entry)
            await asyncio.sleep(0)
        if not foreign:
            return ""
        del answer.entries[:]
        answer.entries.extend(own)
        what = f"its answer to {_short(call)} has ids of other nodes, such as {foreign[0][:_SHOWN_CHARS]}"
        return f"{what}; {len(foreign)} entries are left out"

    def _note(self, call: Question, node: str, note: str) -> None:
        # An empty note says that nothing is wrong any more.
        before = self._notes.pop((node, call.driver, call.method), "")
        if note:
            self._notes[node, call.driver, call.method] = note
            if note != before:
                log.warning("edge node %s: %s", node, note, extra=of_peer(f"edge {node}"))


async def _read(method: str, route: Route, body: bytes) -> Any:
    return await in_thread(body, lambda body: parse(method, answer_with_topology(method, route, body)))


def _token(call: Question) -> str:
    request: Any = METHODS[call.method].request.FromString(call.request)
    return str(request.starting_token)


def _at_token(call: Question, own: str) -> Question:
    request: Any = METHODS[call.method].request.FromString(call.request)
    request.starting_token = own
    return call._replace(request=request.SerializeToString(deterministic=True))


def _digest(first: Question) -> bytes:
    # Of a list: of the request for its first page, which may have secrets.
    return hashlib.sha256(b"\0".join((first.driver.encode(), first.method.encode(), first.request))).digest()


def _short(call: Question) -> str:
    return f"{call.method.rpartition('/')[2]} of driver {call.driver}"
