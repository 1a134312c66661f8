"""A fence: an operator's word that a node which is away is dead. The mount guard lets its volumes go.

Rules:

* A fence is for one absence of a node (`cloud.detach.absences`). With the next sign of life it ends, whether the hub
  runs then or not, and the node's mounts are guarded again.
* A node that comes back after its fence may still have volumes mounted that were detached from it meanwhile, and
  another node may write to them now. The hub cannot undo that. It says so in its log, its audit log and its status,
  until the node reports these volumes unmounted, or an operator says `unfence`.
* If another machine has taken the node's name, a fence is for the earlier machines of this name, too, and for them
  alone while the present one shows a sign of life. So is the taint out-of-service, as soon as the hub sees it.
* A fence ends with the node: once neither hub nor cluster knows the node (`forget`), nothing is held back for it, and a
  machine that takes its name later has none of its mounts.
* A fence counts at once, in memory. The order has succeeded only when the records have it, too.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Final

from cloud.detach.absences import Absences
from cloud.detach.mounts import Mounts
from cloud.records.records import Body, Change, Key, RecordKind, Records, not_durable, stored_bytes
from cloud.trust import audit
from cloud.trust.audit import Event
from common.errors import order_refused, timestamp
from common.operator_orders import Done, Fence, Unfence
from common.store.database_writer import WriteFailed
from common.wording import first_names

log = logging.getLogger("csi_bridge.hub.fences")

_LONGEST_WHY_CHARS: Final = 500
_MOST_SHOWN: Final = 10
_MOST_IN_USE_BYTES: Final = 65_536  # of the names of the volumes in a fence: those of 700 volumes
_RETURNED: Final = "returned"  # The mark of a fence whose node is back. No absence has it.


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fence:
    node: str
    mark: str  # of the absence that it is for, or `_RETURNED`
    at: float  # seconds since the epoch
    why: str
    in_use: tuple[str, ...] | None  # what the node used then; None: not known, or longer than `_MOST_IN_USE_BYTES`


class Fences:
    """The fences of one hub."""

    def __init__(
        self,
        records: Records,
        absences: Absences,
        mounts: Mounts,
        *,
        joined: Callable[[str], str],
        now: Callable[[], float] = time.time,
    ) -> None:
        """`joined` says when the present machine of a node joined, and from where; it may be empty."""
        self._records = records
        self._absences = absences
        self._mounts = mounts
        self._joined = joined
        self._now = now
        self._fences = {it.node: it for it in records.take(RecordKind.FENCE, _read)}
        records.watch(RecordKind.FENCE, lambda key: self._record(*key))

    def is_fenced(self, node: str) -> bool:
        """Whether an operator takes a node for dead, and it has shown no sign of life since."""
        fence = self._fences.get(node)
        return fence is not None and fence.mark == self._absences.mark(node)

    def is_given_up(self, node: str) -> bool:
        """Whether a node's mounts do not count any more: it is fenced, or its Node has the taint out-of-service."""
        return self.is_fenced(node) or self._mounts.is_out_of_service(node)

    async def fence(self, order: Fence, by: str) -> Done:
        """Take a node for dead. Raises CallError, also if the fence does not outlive this hub yet."""
        node = order.node
        what = f"node {order.node} is not fenced"
        if not self._mounts.is_ready:
            raise order_refused(what, "the hub has not read all objects yet; try again")
        if not self._absences.knows(node):
            raise order_refused(what, "the hub knows no such node, and holds no volume back for it")
        life = self._absences.life(node)
        earlier = self._mounts.earlier_use.get(node)
        if life and earlier is None:
            raise order_refused(what, f"its machine runs, because {life}; a fence is for a node that is dead")
        said = await self._fence_earlier(node, earlier, order.why, by) if earlier is not None else []
        if life:
            return Done(said=said)
        in_use = self._mounts.in_use(node)
        if in_use is not None and stored_bytes([*in_use]) > _MOST_IN_USE_BYTES:
            in_use = None
        self._fences[node] = fence = _Fence(
            node=node,
            mark=self._absences.mark(node),
            at=self._now(),
            why=order.why[:_LONGEST_WHY_CHARS],
            in_use=tuple(sorted(in_use)) if in_use is not None else None,
        )
        audit.add(Event.FENCE, who="operator", address=by, node=node, why=fence.why)
        log.warning(
            "an operator takes node %s for dead, and its volumes may be detached: %s", node, fence.why or "no reason"
        )
        await self._write(node, "is fenced")
        return Done(said=[*said, f"node {node} is fenced: its volumes may be detached", self._uses(fence.in_use)])

    async def _fence_earlier(self, node: str, in_use: Collection[str], why: str, by: str) -> list[str]:
        audit.add(Event.FENCE, who="operator", address=by, node=node, machine="earlier", why=why[:_LONGEST_WHY_CHARS])
        log.warning("an operator takes the earlier machine of node %s for off: %s", node, why or "no reason")
        try:
            await self._mounts.settle_earlier(node)
        except OSError as error:
            raise order_refused(f"the earlier machine of node {node} is not fenced", str(error)) from error
        said = f"the earlier machine of node {node} is fenced: the volumes that it used may be detached"
        return [said, self._uses(sorted(in_use))]

    async def unfence(self, order: Unfence, by: str) -> Done:
        """Take a fence back, or settle it after the node's return. Raises CallError."""
        node = order.node
        fence = self._fences.pop(node, None)
        if fence is None:
            raise order_refused(f"node {node} is not unfenced", "it is not fenced")
        audit.add(Event.FENCE, who="operator", address=by, node=node, ended="unfence")
        log.warning("an operator takes the fence of node %s back", node)
        await self._write(node, "is unfenced")
        return Done(said=[f"node {node} is no longer fenced", "volumes that were detached meanwhile stay detached"])

    async def look(self) -> None:
        """Note the nodes that are back. End the fences of those that use none of their volumes, or that are gone."""
        if not self._mounts.is_ready:
            return
        for node in [it for it in self._mounts.earlier_use if self._mounts.is_out_of_service(it)]:
            with suppress(OSError):  # the table shows it, and the next look tries again
                await self._mounts.settle_earlier(node)
                log.warning("node %s has the taint out-of-service: its earlier machine counts as off", node)
        ended = {}
        for node, fence in list(self._fences.items()):
            if not self._absences.knows(node):
                ended[node] = "nobody knows it any more"
            elif not self._is_back(fence):
                continue
            elif self._is_settled(fence):
                ended[node] = "it is back, and uses none of the volumes that it used before"
            elif fence.mark != _RETURNED:
                # The record has the mark, too: the node's own record may still show the absence when the hub ends.
                self._fences[node] = replace(fence, mark=_RETURNED)
                self._records.put(self._record(node))
                log.error("%s", self._warning(fence))
                audit.add(Event.FENCE, who=node, ended="the node is back")
        for node, why in ended.items():
            del self._fences[node]
            log.info("the fence of node %s ends: %s", node, why)
            self._records.put(self._record(node))

    def problems(self) -> Iterator[str]:
        for fence in self._fences.values():
            if self.is_fenced(fence.node):
                yield (
                    f"node {fence.node} is fenced since {timestamp(fence.at)}: an operator takes it for dead, and its "
                    f"volumes may be detached; csi-bridge unfence {fence.node} takes that back"
                )
            elif self._mounts.is_ready and self._is_back(fence):
                yield self._warning(fence)
        for node, volumes in self._mounts.earlier_use.items():
            yield (
                f"another machine has joined as node {node}{self._joined(node)}, and the earlier one has not unmounted "
                f"its volumes, which are kept from other nodes: if it is off for certain, or was started anew since, "
                f"run csi-bridge fence {node}; {self._uses(sorted(volumes))}"
            )

    def _is_back(self, fence: _Fence) -> bool:
        # A node that the hub has forgotten shows no sign of life.
        return self._absences.knows(fence.node) and fence.mark != self._absences.mark(fence.node)

    def _is_settled(self, fence: _Fence) -> bool:
        if fence.in_use is None or self._absences.of(fence.node):
            return False
        in_use = self._mounts.in_use(fence.node)
        return in_use is not None and in_use.isdisjoint(fence.in_use)

    def _warning(self, fence: _Fence) -> str:
        return (
            f"node {fence.node} was fenced at {timestamp(fence.at)}, and is back: its volumes may have been detached "
            f"under its mounts, and another node may write to them; restart its machine or stop its pods that use "
            f"them, and check their data; csi-bridge unfence {fence.node} ends this line; {self._uses(fence.in_use)}"
        )

    def _uses(self, in_use: Sequence[str] | None) -> str:
        if in_use is None:
            return "the hub has no list of the volumes that it used"
        named = first_names([*map(self._shown, in_use)], _MOST_SHOWN)
        return f"it used {named}" if named else "it used no volume"

    def _shown(self, volume: str) -> str:
        claim = self._mounts.claim_of(volume)
        return f"claim {claim} ({volume})" if claim else volume

    def _record(self, node: str) -> Change:
        fence = self._fences.get(node)
        body = {name: value for name, value in asdict(fence).items() if name != "node"} if fence is not None else None
        return Change(RecordKind.FENCE, (node,), body)

    async def _write(self, node: str, what: str) -> None:
        # It counts already. If the write fails, the operator hears it, and it is tried again.
        change = self._record(node)
        self._records.put(change)
        try:
            await self._records.write([*self._absences.records(node), change])
        except WriteFailed as error:
            raise not_durable(f"node {node} {what}", error) from error


def _read(key: Key, body: Body) -> _Fence:
    in_use = body.get("in_use")  # the API server has no null
    return _Fence(node=key[0], **{**body, "in_use": tuple(in_use) if in_use is not None else None})
