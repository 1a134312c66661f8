"""The leak audit: from the first reading to the findings, at an operator's order.

    read the references and the hub's records   ask the nodes for their lists   read both again   judge

Rules:

* It changes nothing, not even the book: these lists stay in the audit.
* A list that is missing is never taken for an empty one. It is reported as not asked, with the reason.
* One order is carried out at a time. An audit asks some nodes at once, each for one page of one list, so that calls
  have room on every link. The loop gets a turn after each `_SLICE` things.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final

from cloud.claims.ledger import Ledger
from cloud.claims.rules import LISTED_BY, SNAPSHOT, VOLUME
from cloud.nodes.edge_nodes import Nodes
from cloud.nodes.fleet import Fleet, Member
from cloud.operators.tally import Tally
from cloud.operators.verdicts import LEAKS, ToldMount, Truths, doubts, ghosts, orphans, read_records, referring, strays
from cloud.parts.references import References
from cloud.parts.sync_part import SyncPart
from cloud.placement.inventory import each_page
from cloud.placement.placement import Placement
from common.errors import CallError, order_refused
from common.objects import left_over
from common.operator_orders import Audit, Audited, Leak, Unasked
from common.pages.json_form import time_of
from common.wording import first_names

_AT_ONCE: Final = 20  # nodes that list at one time; as many as for placement
_SLICE: Final = 500  # things that are compared before the loop gets a turn: one or two milliseconds
MOST_SHOWN: Final = 5_000  # Findings of one answer: 5 MB with the longest ids. The others are counted.
_MOST_UNASKED: Final = 1_000  # Missing lists that an answer names. The others are counted.
_NAMED: Final = 5  # A sentence names so many things or nodes
_TEXT_CHARS: Final = 500  # A vendor's words are cut here


class LeakAudit:
    """Runs the audits of one hub."""

    def __init__(
        self,
        nodes: Nodes,
        placement: Placement,
        part: SyncPart,
        *,
        grace_s: float,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._nodes = nodes
        self._placement = placement
        self._part = part
        self._grace_s = grace_s
        self._now = now
        self._ordered = asyncio.Lock()

    async def order(self, order: Audit, _by: str) -> Audited:
        async with self._ordered:
            return await self._run(order.driver, within_s=max(order.within_s, 1), wanted=order.wanted)

    async def _run(self, driver: str, *, within_s: float, wanted: str) -> Audited:
        began = time_of(self._now())
        opened = await self._placement.claims.ledger()
        before = await self._references()
        known = {*self._nodes.drivers(), *(driver for (driver, _, _), _ in opened.ids)}
        known |= {it.driver for it in opened.open}
        drivers = sorted({driver} & known if driver else known)
        if driver and not drivers:
            raise order_refused("no audit", f"no node has reported driver {driver}, and the hub has no record of it")
        fleets = {each: self._placement.fleets.of(each) for each in drivers}
        tally = Tally(before.named)
        unasked = list[Unasked]()
        if self._part.references is not None:
            unasked += _strangers(opened, fleets)
            await self._list(fleets, tally, unasked, within_s=within_s)
        after = await self._references()
        truths = Truths(
            drivers=drivers,
            before=before,
            after=after,
            opened=opened,
            closed=await self._placement.claims.ledger(),
            tally=tally,
            fleets=fleets,
            fit=self._placement.fit,
            now=self._now(),
            grace_s=self._grace_s,
        )
        told, notes = self._told()
        leaks = list[Leak]()
        counts = dict.fromkeys(LEAKS, 0)
        for verdicts in (read_records(truths), orphans(truths), ghosts(truths), strays(drivers, told), doubts(truths)):
            for number, leak in enumerate(verdicts, 1):
                if leak is not None:
                    counts[leak.leak] += 1
                    leaks += [leak] if len(leaks) < MOST_SHOWN else []
                if number % _SLICE == 0:
                    await asyncio.sleep(0)
        notes += _notes(truths)
        if (hidden := len(unasked) - _MOST_UNASKED) > 0:
            notes.append(f"{hidden} more lists are missing")
        if (hidden := sum(counts.values()) - len(leaks)) > 0:
            notes.append(f"{hidden} more leaks are counted and not shown")
        return Audited(
            began_at=began,
            ended_at=time_of(self._now()),
            leaks=leaks,
            counts=counts,
            unasked=unasked[:_MOST_UNASKED],
            notes=notes,
            referring=list(referring(truths, wanted)) if wanted else [],
        )

    async def _references(self) -> References:
        if self._part.references is None:
            why = "the hub follows no PersistentVolumes; it was started without --kubeconfig and without --manifests"
            return References(unread={VOLUME: why, SNAPSHOT: why})
        return await self._part.references()

    async def _list(
        self, fleets: Mapping[str, Fleet], tally: Tally, unasked: list[Unasked], *, within_s: float
    ) -> None:
        wanted: dict[str, list[tuple[str, Member]]] = {}
        for driver, fleet in fleets.items():
            for member in fleet:
                wanted.setdefault(member.node, []).append((driver, member))
        waiting = iter(wanted.values())
        ends_at = asyncio.get_running_loop().time() + within_s

        async def work() -> None:
            for of_node in waiting:  # each node goes to one of the workers
                for driver, member in of_node:
                    for kind in LISTED_BY:
                        why = await self._why_unlisted(driver, member, kind, tally, ends_at=ends_at)
                        unasked.extend([_unasked(driver, member.node, kind, why)] if why else [])

        async with asyncio.TaskGroup() as tasks:
            for _ in range(min(_AT_ONCE, len(wanted))):
                tasks.create_task(work(), name="leak audit")

    async def _why_unlisted(self, driver: str, member: Member, kind: str, tally: Tally, *, ends_at: float) -> str:
        node = member.node
        try:
            self._nodes.reach(node, driver)
            if LISTED_BY[kind] not in member.lists:
                return f"its driver cannot list {kind}s"
            async with asyncio.timeout_at(ends_at):
                await each_page(self._nodes, driver, node, kind, partial(tally.take, driver, node))
        except TimeoutError:
            return "there was no time left"
        except CallError as error:
            return str(error).partition(";")[0]
        tally.complete.add((driver, kind, node))
        return ""

    def _told(self) -> tuple[list[ToldMount], list[str]]:
        told = list[ToldMount]()
        notes = list[str]()
        silent = list[str]()
        facts = self._part.facts
        for node, fact in facts.node_facts() if facts is not None else ():
            mounts = left_over.read(fact.body.get("status") or {}) if fact is not None else None
            if mounts is None:
                silent.append(node)
                continue
            told += [ToldMount(node, mount, not self._nodes.is_connected(node)) for mount in mounts[0]]
            if mounts[1]:
                notes.append(f"node {node} tells of {mounts[1]} more mounts without a pod")
        if silent:
            notes.append(
                f"mounts are not known of {first_names(silent, _NAMED)}: a kubelet mounts there, the agent is older, "
                f"or it is away since the hub's start"
            )
        return told, notes


def _strangers(opened: Ledger, fleets: Mapping[str, Fleet]) -> Iterator[Unasked]:
    held = {(driver, node) for (driver, _, node), holding in opened.ids if not holding.deleted_at}
    for driver, node in sorted(held):
        if driver in fleets and node not in fleets[driver].members:
            for kind in LISTED_BY:
                yield _unasked(driver, node, kind, "the node has not reported the driver")


def _unasked(driver: str, node: str, kind: str, why: str) -> Unasked:
    return Unasked(node=node, driver=driver, things=kind, why=why[:_TEXT_CHARS])


def _notes(truths: Truths) -> Iterator[str]:
    for why in dict.fromkeys(filter(None, map(truths.unread, (VOLUME, SNAPSHOT)))):
        kinds = " and ".join(f"{kind}s" for kind in (VOLUME, SNAPSHOT) if truths.unread(kind) == why)
        yield f"{kinds} are not compared with Kubernetes: {why}"
    for (driver, why), ids in truths.unjudged.items():
        if why not in (truths.unread(VOLUME), truths.unread(SNAPSHOT)):
            yield f"driver {driver}: {len(ids)} not judged, because {why}: {first_names(ids, _NAMED)}"
    for (driver, node), count in sorted(truths.tally.dropped.items())[:_MOST_UNASKED]:
        yield f"driver {driver}: node {node} lists {count} more that nothing refers to; settle those shown first"
