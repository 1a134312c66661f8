"""The fact table: the facts that each node has reported, and their records.

Rules:

* The hub records a fact before the fact counts and before the hub acknowledges it.
* With an API server, the records hold only the facts that keep a volume from other nodes, because their node may be
  away while the hub starts. A returning node sends the other facts again. The record of a Node then has only two status
  fields and no stamp, and the hub never writes this part to Kubernetes.
* `cloud.sync.facts` has checked that the fact is the node's to tell and makes sense.
* Events are for people. The table keeps only the newest ones of all nodes, and only in memory.
* If another machine takes a node's name, the volumes that the earlier machine had in use still count: only an operator
  knows whether that machine still writes. They count until `clear_earlier_use` or `forget`.
* Each node has a quota of bytes (`cloud.sync.fact_quota`).
* A write that fails raises OSError: the caller tries again.

Records:

    fact      node, kind, namespace, name   uid, version: the stamp that the node gave the fact; empty if it has a part
                                            told_ns: when the hub got it, in nanoseconds since the epoch
                                            body: the fields that the hub keeps (`cloud.sync.fact_kinds`)
    machine   node                          instance: of the machine that told the node's facts last (`Hello.instance`)
                                            earlier_use: a list of texts, as `FactTable.earlier_use`
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from collections.abc import Set as AbstractSet
from itertools import chain
from typing import Final, TypeVar
from weakref import WeakValueDictionary

from cloud.kinds.nodes import in_use
from cloud.kinds.rules.fields import Body
from cloud.kinds.rules.kind_rules import pick
from cloud.nodes.node_rights import NodeRights
from cloud.records.records import Change, Key, RecordKind, Records, stored_bytes
from cloud.sources.index import discard
from cloud.sources.manifests.binding import ClaimStatus, NodeReports
from cloud.sync.fact_kinds import IN_USE_PREFIX, Fact, check_ref, keep
from cloud.sync.fact_quota import EARLIER_USE, FACT_QUOTA_BYTES, GUARDED_KINDS, FactQuota
from common.objects import sole_use
from common.objects.objects import Ref, Stamp, encode_body
from common.wording import first_names, shorten

K = TypeVar("K")
MOST_FACTS: Final = 10_000  # of one node: each is a claim or a pod
MOST_EVENTS: Final = 1_000  # Of all nodes. Above this number, the table drops the oldest one of the node with the most.
_RECORD_BYTES: Final = 100  # of a record, in addition to its texts: the names of its fields, the stamp, the time
_SHOWN_CHARS: Final = 100  # of a node id in a sentence
_MOST_SHOWN: Final = 10  # nodes in a sentence

# Under this name the volumes of a node's earlier machines count in its quota. No node can send such a fact.
_EARLIER_USE: Final = Ref(EARLIER_USE, "", "")


class FactTable:
    """The facts of all nodes."""

    def __init__(
        self, records: Records, rights: NodeRights, *, guarded_only: bool = False, quota_bytes: int = FACT_QUOTA_BYTES
    ) -> None:
        """Read all recorded facts. Raises SettingsError if the records are damaged.

        With `guarded_only` the records get only what keeps a volume from other nodes.
        """
        self._records = records
        self._rights = rights
        self._guarded_only = guarded_only
        self._quota = FactQuota(quota_bytes)
        self._trouble = ""  # why the last write failed; empty if it did not
        # Facts whose last write failed or has not ended. The records may have them or not.
        self._unsure: set[Key] = set()
        self._facts: dict[str, dict[Ref, Fact]] = {}
        self._instances: dict[str, str] = {}  # by node: the machine that told its facts last
        # By node: the volumes that earlier machines of this name had in use when another one took the name, as names of
        # `volumesInUse`; and the names of their claims to volumes (`common.objects.sole_use`)
        self.earlier_use: dict[str, frozenset[str]] = {}
        self.events: dict[tuple[str, Ref], Fact] = {}  # the newest Events by node and name, the oldest first
        self._nodes_with_fact: defaultdict[Ref, set[str]] = defaultdict(set)  # the nodes with a fact about a claim
        # The nodes that list a volume as in use, by the volume's name in `volumesInUse`
        self._nodes_using: defaultdict[str, set[str]] = defaultdict(set)
        self._node_reports: NodeReports | None = None
        self._conflicts: list[str] | None = None
        self._subscribers: list[Callable[[], None]] = []
        # By node: its facts are written one after another
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        for node, instance, earlier_use in records.take(RecordKind.MACHINE, _read_machine):
            self._index_machine(node, instance, earlier_use)
        for node, ref, fact in records.take(RecordKind.FACT, _read_fact):
            self._quota.put(node, ref, _size(node, ref, fact))
            self._facts.setdefault(node, {})[ref] = fact
            self._index_fact(node, ref, None, fact)
        records.watch(RecordKind.FACT, lambda key: self._present_fact(*key))
        records.watch(RecordKind.MACHINE, lambda key: self._present_machine(*key))

    # ---- questions ---------------------------------------------------------------------------------------------------

    def of(self, node: str) -> Mapping[Ref, Fact]:
        return self._facts.get(node, {})

    def stamps(self, node: str) -> Mapping[Ref, Stamp]:
        """The stamp of each fact. An empty one matches no agent's: the node sends the fact, or its removal, again."""
        return {
            ref: fact.stamp if _key(node, ref) not in self._unsure else Stamp("", "")
            for ref, fact in self.of(node).items()
        }

    def permitted_body(self, node: str, ref: Ref) -> Body | None:
        """A fact's body without the parts that the node may not tell; None if there is no such fact."""
        fact = self.of(node).get(ref)
        return self._rights.believed(node, ref, fact.body) if fact is not None else None

    def judge_again(self, node: str) -> None:
        """Note that a node's rights have changed: `node_reports` may show more or less of its Node."""
        if Ref("Node", "", node) in self.of(node):
            self._reports_changed()

    def nodes_with_fact(self, ref: Ref) -> Collection[str]:
        return tuple(self._nodes_with_fact.get(ref, ()))

    def nodes_using(self, volume: str) -> Collection[str]:
        return self._nodes_using.get(volume, frozenset())

    def nodes(self) -> Iterator[str]:
        return iter(list(self._facts))

    def node_facts(self) -> Iterator[tuple[str, Fact | None]]:
        for node in self.nodes():
            yield node, self.of(node).get(Ref("Node", "", node))

    def has_accepted(self, node: str, ref: Ref) -> bool:
        """Whether the table has a fact, and has not taken it as a stray one."""
        return ref in self.of(node) and not self._quota.is_stray(node, ref)

    def node_reports(self) -> NodeReports:
        """All facts that change other objects. It is the same object until one of these facts changes."""
        if self._node_reports is None:
            claims: defaultdict[Ref, list[ClaimStatus]] = defaultdict(list)
            rows = [
                (fact, ref, node)
                for node, facts in self._facts.items()
                for ref, fact in facts.items()
                if ref.kind == "PersistentVolumeClaim"
            ]
            for fact, ref, node in sorted(rows, key=lambda row: row[0].told_ns):
                uid = fact.body.get("metadata", {}).get("uid", "")
                volume = fact.body.get("spec", {}).get("volumeName", "")
                claims[ref].append(ClaimStatus(node, uid, fact.body["status"], volume=volume))
            nodes = dict[str, Body]()
            for node in self._facts:
                body = self.permitted_body(node, Ref("Node", "", node))
                if body is not None:
                    nodes[node] = pick(body, "metadata")
            self._node_reports = NodeReports({ref: tuple(statuses) for ref, statuses in claims.items()}, nodes)
        return self._node_reports

    def problems(self) -> list[str]:
        if self._conflicts is None:
            self._conflicts = list(_id_conflicts(self._facts))
        problems = [
            f"{text}: the hub stores no more of them; what is left out is not shown here and not in Kubernetes"
            for _, text in sorted(self._quota.exceeded.items())
        ]
        if self._trouble:
            problems.insert(
                0,
                "the hub cannot store the facts that nodes send, and the nodes keep them until it can: "
                f"{self._trouble}",
            )
        return problems + self._conflicts

    def stored(self, node: str = "") -> Iterator[tuple[str, Ref, Fact]]:
        """The facts and Events with their nodes, in order; those of one node alone if `node` names it."""
        facts = ((name, ref, fact) for name in ([node] if node else self._facts) for ref, fact in self.of(name).items())
        events = ((name, ref, fact) for (name, ref), fact in self.events.items() if node in ("", name))
        return iter(sorted(chain(facts, events), key=lambda row: row[:2]))

    def subscribe(self, changed: Callable[[], None]) -> None:
        """Call `changed` on the loop whenever `node_reports()` is another object."""
        self._subscribers.append(changed)

    # ---- changes -----------------------------------------------------------------------------------------------------

    async def put(self, node: str, ref: Ref, fact: Fact, *, stray: bool = False) -> None:
        """Keep a fact. If the caller is cancelled, it may be kept or not.

        `stray`: the hub does not know that it gave the node the fact's object (`cloud.sync.fact_quota`).

        Raises ValueError if the node has told too many, or has no room left; OSError if it cannot be written.
        """
        async with self._lock(node):
            facts = self._facts.setdefault(node, {})
            if ref not in facts and len(facts) >= MOST_FACTS:
                raise ValueError(f"node {node} sends more than {MOST_FACTS} objects")
            is_sure = _key(node, ref) not in self._unsure
            if is_sure and facts.get(ref) == fact:
                return
            size = _size(node, ref, fact)
            self._quota.check(node, ref, size, stray=stray)
            record = self._recorded(ref, fact)
            # Write it only if the recorded part has changed, or if the records may lack it.
            if record is not None and not (is_sure and record == self._recorded(ref, facts.get(ref))):
                body = {**record, "told_ns": fact.told_ns}
                await self._write([Change(RecordKind.FACT, _key(node, ref), body)])
            self._quota.put(node, ref, size, stray=stray)
            old, facts[ref] = facts.get(ref), fact
            self._index_fact(node, ref, old, fact)

    async def settle_failed(self, ref: Ref) -> None:
        """Remove the records of facts that do not count because their write failed. Raises OSError."""
        for node, *names in list(self._unsure):
            if Ref(*names) == ref and ref not in self.of(node):
                await self.remove(node, ref)

    async def remove(self, node: str, ref: Ref) -> None:
        async with self._lock(node):
            await self._write(self._removed(node, ref))
            self._quota.remove(node, ref)
            self._index_fact(node, ref, self._facts.get(node, {}).pop(ref, None), None)

    async def note_machine(self, node: str, instance: str) -> None:
        """Note which machine reports a node's facts from now on. The volumes of another one become `earlier_use`.

        Raises ValueError if the volumes of the node's earlier machines have no room left, OSError if the write fails.
        """
        async with self._lock(node):
            before = self._instances.get(node)
            if before == instance:
                return
            volumes = self.earlier_use.get(node, frozenset())
            if before is not None:
                volumes |= _all_in_use(self.of(node))
            await self._put_machine(node, instance, volumes)

    async def clear_earlier_use(self, node: str) -> None:
        """Note that a node's earlier machines have no volume mounted any more. Raises OSError if the write fails."""
        async with self._lock(node):
            if node in self.earlier_use:
                await self._put_machine(node, self._instances[node], frozenset())

    async def remove_all(self, node: str) -> None:
        """Remove all facts of a node, but not what its earlier machines had in use. Raises OSError."""
        async with self._lock(node):
            await self._remove_all(node)
            if node in self.earlier_use:
                self._quota.put(node, _EARLIER_USE, _machine_size(node, self.earlier_use[node]))

    async def forget(self, node: str) -> None:
        async with self._lock(node):
            # The machine's record goes last: the volumes of earlier machines count until all else is removed.
            await self._remove_all(node, Change(RecordKind.MACHINE, (node,), None))
            self._instances.pop(node, None)
            self.earlier_use.pop(node, None)

    def put_event(self, node: str, ref: Ref, fact: Fact) -> None:
        self.events.pop((node, ref), None)
        self.events[node, ref] = fact
        if len(self.events) > MOST_EVENTS:
            busiest, _ = Counter(name for name, _ in self.events).most_common(1)[0]
            del self.events[next(key for key in self.events if key[0] == busiest)]

    # ---- inside ------------------------------------------------------------------------------------------------------

    async def _remove_all(self, node: str, *more: Change) -> None:
        # A failed write may have removed some of the records. All facts then count until the hub ends, and the caller
        # tries again. After a restart, the guard (`cloud.detach.mount_guard`) holds a detach back if it does not know
        # whether the node uses the volume.
        unsure = {Ref(*names) for name, *names in self._unsure if name == node}
        await self._write([*self._removed(node, *self.of(node).keys() | unsure), *more])
        self._quota.forget(node)
        for key in [key for key in self.events if key[0] == node]:
            del self.events[key]
        for ref, fact in self._facts.pop(node, {}).items():
            self._index_fact(node, ref, fact, None)

    async def _put_machine(self, node: str, instance: str, earlier_use: frozenset[str]) -> None:
        change = _machine_record(node, instance, earlier_use)
        self._quota.check(node, _EARLIER_USE, _machine_size(node, earlier_use))
        await self._write([change])
        self._index_machine(node, instance, earlier_use)

    def _present_fact(self, node: str, *ref: str) -> Change:
        fact = self.of(node).get(Ref(*ref))
        record = self._recorded(Ref(*ref), fact)
        body = {**record, "told_ns": fact.told_ns} if fact is not None and record is not None else None
        return Change(RecordKind.FACT, (node, *ref), body)

    def _present_machine(self, node: str) -> Change:
        if node not in self._instances:
            return Change(RecordKind.MACHINE, (node,), None)
        return _machine_record(node, self._instances[node], self.earlier_use.get(node, frozenset()))

    def _recorded(self, ref: Ref, fact: Fact | None) -> Body | None:
        # Without the fact's time. None if the records do not get the fact.
        if fact is None or (self._guarded_only and ref.kind not in GUARDED_KINDS):
            return None
        if self._guarded_only and ref.kind == "Node":
            # Without the stamp: after a restart the agent sends the whole fact again (`Fact.is_part`).
            kept = {"status": pick(fact.body.get("status"), "volumesInUse", "fence")}
            return {"uid": "", "version": "", "body": kept}
        return {"uid": fact.stamp.uid, "version": fact.stamp.version, "body": fact.body}

    def _removed(self, node: str, *refs: Ref) -> list[Change]:
        recorded = [ref for ref in refs if ref.kind in GUARDED_KINDS or not self._guarded_only]
        return [Change(RecordKind.FACT, _key(node, ref), None) for ref in recorded]

    async def _write(self, changes: list[Change]) -> None:
        facts = [change.key for change in changes if change.kind is RecordKind.FACT]
        self._unsure.update(facts)
        try:
            await self._records.write(changes)
        except OSError as error:
            self._trouble = str(error)
            raise
        self._unsure.difference_update(facts)
        self._trouble = ""

    def _index_machine(self, node: str, instance: str, earlier_use: frozenset[str]) -> None:
        self._instances[node] = instance
        self.earlier_use.pop(node, None)
        self._quota.remove(node, _EARLIER_USE)
        if earlier_use:
            self.earlier_use[node] = earlier_use
            self._quota.put(node, _EARLIER_USE, _machine_size(node, earlier_use))

    def _lock(self, node: str) -> asyncio.Lock:
        return self._locks.setdefault(node, asyncio.Lock())

    def _index_fact(self, node: str, ref: Ref, old: Fact | None, new: Fact | None) -> None:
        if ref.kind == "CSINode":
            self._conflicts = None
        elif ref.kind == "Node":
            _move(self._nodes_using, node, _in_use(old), _in_use(new))
            # The volumes in use change with every mount, and concern no other object.
            if not (old and new and old.body.get("metadata") == new.body.get("metadata")):
                self._reports_changed()
        elif ref.kind == "PersistentVolumeClaim":
            _move(self._nodes_with_fact, node, {ref} if old else set(), {ref} if new else set())
            self._reports_changed()

    def _reports_changed(self) -> None:
        self._node_reports = None
        for changed in list(self._subscribers):
            changed()


# docs/csi-contract.md#node-ids-are-never-rewritten
def _id_conflicts(facts: Mapping[str, Mapping[Ref, Fact]]) -> Iterator[str]:
    holders: dict[tuple[str, str], set[str]] = {}
    for node, node_facts in facts.items():
        fact = node_facts.get(Ref("CSINode", "", node))
        for driver in fact.body["spec"]["drivers"] if fact is not None else ():
            holders.setdefault((driver["name"], driver["nodeID"]), set()).add(node)
    for (driver, node_id), nodes in sorted(holders.items()):
        if len(nodes) > 1:
            yield (
                f"CSI driver {driver} gave the node ID {shorten(node_id, _SHOWN_CHARS)!r} on the nodes "
                f"{first_names(sorted(nodes), _MOST_SHOWN)}: "
                f"volumes may be attached to the wrong one; let the driver give each node an ID of its own "
                f"(mostly its flag --nodeid, from spec.nodeName)"
            )


def _move(index: dict[K, set[str]], node: str, before: AbstractSet[K], now: AbstractSet[K]) -> None:
    for key in now - before:
        index[key].add(node)
    for key in before - now:
        discard(index, key, node)


def _in_use(fact: Fact | None) -> frozenset[str]:
    return frozenset(in_use(fact.body)) if fact is not None else frozenset()


def _all_in_use(facts: Mapping[Ref, Fact]) -> frozenset[str]:
    claims = {ref.name for ref in facts if ref.kind == sole_use.KIND}
    volumes = {name for ref, fact in facts.items() if ref.kind == "Node" for name in _in_use(fact)}
    # Unchecked `volumesInUse` must not pass for a claim, which is checked.
    return frozenset(claims | {name for name in volumes if name.startswith(IN_USE_PREFIX)})


def _key(node: str, ref: Ref) -> Key:
    return node, ref.kind, ref.namespace, ref.name


def _size(node: str, ref: Ref, fact: Fact) -> int:
    texts = "".join((*_key(node, ref), fact.stamp.uid, fact.stamp.version, encode_body(fact.body).decode()))
    return _RECORD_BYTES + stored_bytes(texts)


def _machine_record(node: str, instance: str, earlier_use: frozenset[str]) -> Change:
    return Change(RecordKind.MACHINE, (node,), {"instance": instance, "earlier_use": sorted(earlier_use)})


def _machine_size(node: str, earlier_use: frozenset[str]) -> int:
    return _RECORD_BYTES + stored_bytes([node, *earlier_use])


def _read_fact(key: Key, body: Body) -> tuple[str, Ref, Fact]:
    node, *names = key
    ref = Ref(*names)
    check_ref(node, ref)
    return node, ref, Fact(Stamp(body["uid"], body["version"]), keep(body["body"], ref), int(body["told_ns"]))


def _read_machine(key: Key, body: Body) -> tuple[str, str, frozenset[str]]:
    (node,) = key
    return node, body["instance"], frozenset(body["earlier_use"])
