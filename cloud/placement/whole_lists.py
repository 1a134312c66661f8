"""The whole lists: ListVolumes and its like for all nodes of a driver, each of which has things of its own.

Rules:

* The first page has the entries of every node, or the call is refused, with the nodes that are missing
  (docs/csi-contract.md#a-list-is-whole-or-refused). The next pages come from the same list (`sweeps`).
* A node that does not answer in time, or not with a whole list, is represented by its last complete list, while that is
  younger than `--list-age`.
* A thing belongs to the node that made it, or that its PersistentVolume is for. Another node's entry of this id is left
  out: the attacher would go by it. If nobody knows whose it is, both entries stay.
* The hub keeps, for operators, each node's part in the last list of its driver if something was wrong with it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from cloud.node_call import Call
from cloud.placement.claim_store import IdEntry
from cloud.placement.decisions import Send
from cloud.placement.fan_out import Answer
from cloud.placement.inventory import Unlisted
from cloud.placement.node_lists import NodeList, NodeLists, without_page
from cloud.placement.requests import LISTINGS, Thing
from cloud.placement.sweeps import Sweeps
from common.csi.csi_pb2 import ControllerServiceCapability
from common.csi.methods import METHODS
from common.errors import CallError, NotListed, timestamp
from common.logs import of_peer
from common.status import Code, Status

log = logging.getLogger("csi_bridge.hub.placement")

_SHARE: Final = 0.9
"""A node has this share of the caller's time. The hub answers in the rest."""

_TIME_S: Final = 60.0
"""The time of a caller that sets none."""

_AT_ONCE: Final = 4
"""The whole lists of one driver that are made at one time; others wait. Each is a question to every node."""

_STEP: Final = 200
"""After so many nodes or entries, the hub serves its other calls."""


_SHOWN_CHARS: Final = 400
"""Ids are cut here."""

_OK: Final = Status(Code.OK)


class _Part(NamedTuple):
    """A node's part in a whole list.

    Attributes:
        node: the node.
        told: its list; None: it has none that counts.
        trouble: why its driver has not listed all now; empty if it has.
    """

    node: str
    told: NodeList | None
    trouble: str


class WholeLists:
    """Makes the lists of all drivers."""

    def __init__(
        self,
        lists: NodeLists,
        sweeps: Sweeps,
        *,
        look: Callable[[str, Sequence[Thing]], Awaitable[Mapping[Thing, IdEntry]]],
        elsewhere: Callable[[str, Thing, str], str],
        now: Callable[[], float],
    ) -> None:
        """Begin without lists.

        Args:
            lists: the nodes' lists.
            sweeps: the lists that are handed out.
            look: of a driver and things: the hub's records of them.
            elsewhere: of a driver, a thing and a node: another node that its PersistentVolume is for, if it is not for
                this one; else empty.
            now: seconds since the epoch.
        """
        self._lists, self._sweeps, self._look, self._elsewhere, self._now = lists, sweeps, look, elsewhere, now
        self._turns: dict[str, asyncio.Semaphore] = {}
        self._notes: dict[tuple[str, str, str], tuple[str, float]] = {}
        """By node, driver and method: a sentence for people, and the time of the list that counts; 0: none does."""

    async def of(self, call: Call, sends: Sequence[Send]) -> Answer:
        """A page of the list of these nodes.

        Raises:
            NotListed: it would lack entries of a node.
            TokenUnknown: the caller's token is for no list that the hub has.
        """
        driver, method = call.driver, call.method
        request: Any = METHODS[method].request.FromString(call.request)
        most = max(0, request.max_entries)
        if request.starting_token:
            return _OK, self._sweeps.next(driver, method, request.starting_token, most)
        until = asyncio.get_running_loop().time() + _SHARE * (_TIME_S if call.timeout_s is None else call.timeout_s)
        async with self._turns.setdefault(driver, asyncio.Semaphore(_AT_ONCE)):
            parts = await self._parts(call._replace(request=without_page(method, call.request)), sends, until)
            for part in parts:
                self._note(driver, method, part)
            if missing := {part.node: part.trouble for part in parts if part.told is None}:
                raise NotListed(driver, method, missing)
            common = _common(parts)
            wires = [wire for part in parts for wire in await self._own(driver, method, part, common)]
            return _OK, self._sweeps.first(driver, method, wires, most)

    def problems(self, node: str) -> Iterator[str]:
        """What was wrong with a node's part in the last list of each driver, a sentence each."""
        for (its, _, _), (note, began) in self._notes.items():
            if its == node:
                yield f"{note}; they are {(self._now() - began) / 60:.0f} min old" if began else note

    def forget(self, node: str, driver: str = "") -> None:
        """Drop all of a node, or of one driver there."""
        self._lists.forget(node, driver)
        for key in [key for key in self._notes if key[0] == node and driver in ("", key[1])]:
            del self._notes[key]

    async def close(self) -> None:
        """Ask no more."""
        await self._lists.close()

    async def _parts(self, call: Call, sends: Sequence[Send], until: float) -> list[_Part]:
        tasks = []
        try:
            for number, send in enumerate(sends):
                tasks.append(asyncio.ensure_future(self._part(call, send, until)))
                if number % _STEP == _STEP - 1:
                    await asyncio.sleep(0)
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def _part(self, call: Call, send: Send, until: float) -> _Part:
        """A node's list, or its last one."""
        driver, method, request, needed = call.driver, call.method, call.request, LISTINGS[call.method].capability
        if send.member is not None and send.member.ballot is not None and needed not in send.member.lists:
            name = ControllerServiceCapability.RPC.Type.Name(needed)
            return _Part(send.node, None, f"its driver lacks the capability {name}")
        try:
            async with asyncio.timeout_at(until):
                return _Part(send.node, await self._lists.ask(send, driver, method, request), "")
        except TimeoutError:
            trouble = "it did not answer in time"
        except (CallError, Unlisted) as error:
            trouble = str(error)
        return _Part(send.node, self._lists.last(driver, send.node, method, request), trouble)

    async def _own(self, driver: str, method: str, part: _Part, common: frozenset[str]) -> list[bytes]:
        """The entries of a node, without those that are another node's."""
        assert part.told is not None
        kind, entries, found, foreign = LISTINGS[method].kind, part.told.entries, list[bytes](), list[str]()
        for start in range(0, len(entries), _STEP):
            step = entries[start : start + _STEP]
            records = await self._look(driver, [Thing(kind, entry.id) for entry in step])
            for entry in step:
                thing = Thing(kind, entry.id)
                made = records[thing].made
                owner = next(iter(made), "") if part.node not in made else ""
                if not owner and entry.id in common:
                    owner = self._elsewhere(driver, thing, part.node)
                if owner:
                    foreign.append(f"{thing}, which is on edge node {owner}")
                else:
                    found.append(entry.wire)
            await asyncio.sleep(0)
        if foreign:
            name = method.rpartition("/")[2]
            note = (
                f"its answer to {name} of driver {driver} has ids of other nodes, such as {foreign[0][:_SHOWN_CHARS]}"
            )
            self._tell((part.node, driver, method), f"{note}; {len(foreign)} entries are left out")
        return found

    def _note(self, driver: str, method: str, part: _Part) -> None:
        """Note for people how a node took part in a list."""
        key, name = (part.node, driver, method), method.rpartition("/")[2]
        if not part.trouble:
            self._notes.pop(key, None)
        elif part.told is None:
            self._tell(
                key, f"{name} of driver {driver} is refused, as it would lack this node's entries: {part.trouble}"
            )
        else:
            since = timestamp(part.told.began)
            what = f"{name} of driver {driver} has this node's entries from {since}, as there are no newer ones"
            self._tell(key, f"{what}: {part.trouble}", part.told.began)

    def _tell(self, key: tuple[str, str, str], note: str, began: float = 0.0) -> None:
        if self._notes.get(key, ("", 0.0))[0] != note:
            log.warning("edge node %s: %s", key[0], note, extra=of_peer(f"edge {key[0]}"))
        self._notes[key] = (note, began)


def _common(parts: Sequence[_Part]) -> frozenset[str]:
    """The ids that several nodes list."""
    seen, common = set[str](), set[str]()
    for part in parts:
        ids = {entry.id for entry in part.told.entries} if part.told is not None else set()
        common |= seen & ids
        seen |= ids
    return frozenset(common)
