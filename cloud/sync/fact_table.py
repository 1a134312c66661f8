"""The fact table: the facts that the nodes told, in `facts.db`, and the objects that they change.

Rules:

* A fact is in the database before it counts and before the hub acknowledges it, so it outlives the hub.
* `cloud.sync.facts` has checked that the fact is the node's to tell and makes sense.
* Events are kept for people, the newest ones of each node. They are not in memory.
* What a node's machine had in use stays when another machine tells the facts of that name: only an operator knows
  whether the earlier machine still writes. It lasts until `settle` or `forget`.
* Each node has a quota of bytes (`cloud.sync.fact_quota`), and the table leaves the last room on the disk to the
  hub's other files.
* One thread does all writing (`common.database_writer`). A write that fails raises OSError: the caller tries again.
"""

import asyncio
import contextlib
import json
import logging
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, Self
from weakref import WeakValueDictionary

from cloud.kinds.fields import Body
from cloud.kinds.kind_rules import pick
from cloud.node_rights import NodeRights
from cloud.sources.manifests.binding import ClaimStatus, Told
from cloud.sync.fact_kinds import IN_USE_PREFIX, Fact, check_ref, keep
from cloud.sync.fact_quota import FACT_QUOTA_BYTES, ROW_BYTES, FactQuota
from cloud.sync.node_ids import id_conflicts
from common import sole_use
from common.database import Schema, connect_to_read, open_database
from common.database_writer import DatabaseWriter, Statement
from common.errors import SettingsError
from common.objects import Ref, Stamp, encode_body

log = logging.getLogger("csi_bridge.hub.facts")

SCHEMA: Final = Schema(
    "hub",
    (
        (
            """CREATE TABLE facts (
                node TEXT NOT NULL, kind TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL, uid TEXT NOT NULL,
                version TEXT NOT NULL, told_ns INTEGER NOT NULL, body TEXT NOT NULL,
                PRIMARY KEY (node, kind, namespace, name)
            ) STRICT""",
            """CREATE TABLE machines (
                node TEXT PRIMARY KEY, instance TEXT NOT NULL, earlier_use TEXT NOT NULL
            ) STRICT, WITHOUT ROWID""",
        ),
    ),
)
"""Of `facts.db`. `uid` and `version` are the stamp that the node gave the fact. `instance` is that of the machine that
told the node's facts last (`Hello.instance`); `earlier_use` is a JSON list."""

MOST_FACTS: Final = 10_000
"""Of one node, without its Events: each is a claim or a pod."""

LEAST_FREE_BYTES: Final = 16 * 1_048_576
"""The room on the disk that facts leave to the hub's other files: calls need them, and no call needs facts."""

MOST_EVENTS: Final = 1_000
"""Of one node. The table drops the oldest ones."""

_PUT: Final = """INSERT OR REPLACE INTO facts (node, kind, namespace, name, uid, version, told_ns, body)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?)"""
_DROP: Final = "DELETE FROM facts WHERE node = ? AND kind = ? AND namespace = ? AND name = ?"
_SELECT: Final = """SELECT node, kind, namespace, name, uid, version, told_ns, body FROM facts
    ORDER BY told_ns, rowid"""
_SELECT_IN_ORDER: Final = """SELECT node, kind, namespace, name, uid, version, told_ns, body FROM facts
    ORDER BY node, kind, namespace, name"""
_SELECT_OF: Final = """SELECT node, kind, namespace, name, uid, version, told_ns, body FROM facts WHERE node = ?
    ORDER BY kind, namespace, name"""
_VOID: Final = "DELETE FROM facts WHERE node = ?"
_PUT_MACHINE: Final = "INSERT OR REPLACE INTO machines (node, instance, earlier_use) VALUES (?, ?, ?)"
_DROP_MACHINE: Final = "DELETE FROM machines WHERE node = ?"
_SELECT_MACHINES: Final = "SELECT node, instance, earlier_use FROM machines"

_EARLIER_USE: Final = Ref("EarlierUse", "", "")
"""Under this name the volumes of a node's earlier machines count in its quota. No node can send such a fact."""

_Row = tuple[str, str, str, str, str, str, int, str]


class FactTable:
    """The facts of all nodes. It is open as long as an `async with` block of it.

    Attributes:
        earlier_use: by node: the volumes that earlier machines of this name had in use when another one took the name,
            as names of `volumesInUse`; and the names of their claims to volumes (`common.sole_use`).
    """

    def __init__(
        self,
        state_dir: Path,
        rights: NodeRights,
        *,
        quota_bytes: int = FACT_QUOTA_BYTES,
    ) -> None:
        """Read all facts. `rights` say which of them the hub believes.

        Raises:
            SettingsError: the directory cannot be used, or a newer hub wrote the database.
        """
        self._path, self._rights = state_dir / "facts.db", rights
        self._quota_bytes = quota_bytes
        self._quota = FactQuota(quota_bytes)
        self._facts: dict[str, dict[Ref, Fact]] = {}
        self._instances: dict[str, str] = {}
        """By node: the machine that told its facts last."""
        self.earlier_use: dict[str, frozenset[str]] = {}
        self._users: dict[str, set[str]] = {}
        """The nodes that list a volume as in use, by the volume's name in `volumesInUse`."""
        self._told: Told | None = None
        self._conflicts: list[str] | None = None
        self._subscribers: list[Callable[[], None]] = []
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """By node: its facts are written one after another."""
        try:
            state_dir.mkdir(parents=True, exist_ok=True)
            database = open_database(self._path, SCHEMA, check=self._read).connection
        except (OSError, sqlite3.Error) as error:
            raise SettingsError("--state-dir", str(state_dir), f"cannot be used: {error}") from error
        self._writer = DatabaseWriter(
            self._path,
            database,
            meanwhile="the nodes keep their facts until it works",
            least_free_bytes=LEAST_FREE_BYTES,
        )

    async def __aenter__(self) -> Self:
        """The table, for as long as the block lasts."""
        return self

    async def __aexit__(self, *_exc: object) -> None:
        """Finish the running writes, and close the database."""
        await self._writer.close()

    def of(self, node: str) -> Mapping[Ref, Fact]:
        """A node's facts, without its Events."""
        return self._facts.get(node, {})

    def believed(self, node: str, ref: Ref) -> Body | None:
        """A fact's body as far as the hub believes it; None if there is no such fact."""
        fact = self.of(node).get(ref)
        return self._rights.believed(node, ref, fact.body) if fact is not None else None

    def judge_again(self, node: str) -> None:
        """The hub may believe a node other things than before."""
        if Ref("Node", "", node) in self.of(node):
            self._retold()

    def users(self, volume: str) -> Collection[str]:
        """The nodes that list a volume as in use, by its name in `volumesInUse`."""
        return self._users.get(volume, frozenset())

    def nodes(self) -> Iterator[str]:
        """The nodes that have facts, apart from Events."""
        return iter(list(self._facts))

    def node_facts(self) -> Iterator[tuple[str, Fact | None]]:
        """Each node that has facts, with its fact about its Node if it has told one."""
        for node in self.nodes():
            yield node, self.of(node).get(Ref("Node", "", node))

    def has_accepted(self, node: str, ref: Ref) -> bool:
        """Whether a fact about an object is stored, and not as a stray one."""
        return ref in self.of(node) and not self._quota.is_stray(node, ref)

    def told(self) -> Told:
        """All facts that change other objects. It is the same object until one of these facts changes."""
        if self._told is None:
            claims: dict[Ref, list[tuple[int, ClaimStatus]]] = {}
            for node, facts in self._facts.items():
                for ref, fact in facts.items():
                    if ref.kind == "PersistentVolumeClaim":
                        uid = fact.body.get("metadata", {}).get("uid", "")
                        volume = fact.body.get("spec", {}).get("volumeName", "")
                        status = ClaimStatus(node, uid, fact.body["status"], volume=volume)
                        claims.setdefault(ref, []).append((fact.told_ns, status))
            in_order = {
                ref: tuple(status for _, status in sorted(told, key=lambda item: item[0]))
                for ref, told in claims.items()
            }
            nodes = {
                node: pick(body, "metadata")
                for node in self._facts
                if (body := self.believed(node, Ref("Node", "", node))) is not None
            }
            self._told = Told(in_order, nodes)
        return self._told

    def problems(self) -> list[str]:
        """Sentences about a disk that takes nothing, and about nodes with the same node id."""
        if self._conflicts is None:
            self._conflicts = list(id_conflicts(self._facts))
        why = self._writer.trouble
        trouble = f"the hub cannot store the facts that nodes send, and the nodes keep them until it can: {why}"
        exceeded = [
            f"{text}: the hub stores no more of them; what is left out is not shown here and not in Kubernetes"
            for _, text in sorted(self._quota.exceeded.items())
        ]
        return [*([trouble] if why else []), *exceeded, *self._conflicts]

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` on the loop whenever `told()` is another object. Returns a function that ends this."""
        self._subscribers.append(changed)
        return lambda: self._subscribers.remove(changed)

    async def put(self, node: str, ref: Ref, fact: Fact, *, stray: bool = False) -> None:
        """Keep a fact. If the caller is cancelled, it may be kept or not.

        Args:
            node: the node that told it.
            ref: the object.
            fact: its state.
            stray: whether the hub does not know that the node has the object.

        Raises:
            ValueError: the node has told too many, or has no room left.
            OSError: it cannot be written.
        """
        async with self._lock(node):
            facts = self._facts.setdefault(node, {})
            if ref not in facts and len(facts) >= MOST_FACTS:
                raise ValueError(f"node {node} sends more than {MOST_FACTS} objects")
            if facts.get(ref) == fact:
                return
            row = _put(node, ref, fact)
            size = _size(row[1])
            self._quota.check(node, ref, size, stray=stray)
            await self._writer.commit([row], grows=True)
            self._quota.put(node, ref, size, stray=stray)
            facts = self._facts.setdefault(node, {})
            old = facts.pop(ref, None)  # so that it comes last
            facts[ref] = fact
            self._note(ref, old, fact)

    async def remove(self, node: str, ref: Ref) -> None:
        """Remove a fact. Raises OSError if that cannot be written."""
        async with self._lock(node):
            await self._writer.commit([(_DROP, _key(node, ref))])
            self._quota.remove(node, ref)
            self._note(ref, self._facts.get(node, {}).pop(ref, None), None)

    async def meet(self, node: str, instance: str) -> None:
        """Note which machine tells a node's facts from now on. What another one had in use becomes `earlier_use`.

        Raises:
            ValueError: the volumes of the node's earlier machines have no room left.
            OSError: it cannot be written.
        """
        async with self._lock(node):
            before = self._instances.get(node)
            if before == instance:
                return
            volumes = self.earlier_use.get(node, frozenset())
            if before is not None:
                volumes |= _all_in_use(self.of(node))
            await self._put_machine(node, instance, volumes)

    async def settle(self, node: str) -> None:
        """The earlier machines of a node have no volume mounted any more. Raises OSError if that cannot be written."""
        async with self._lock(node):
            if node in self.earlier_use:
                await self._put_machine(node, self._instances[node], frozenset())

    async def void(self, node: str) -> None:
        """Remove all facts of a node, but not what its earlier machines had in use. Raises OSError."""
        async with self._lock(node):
            await self._void(node, [(_VOID, (node,))])
            if node in self.earlier_use:
                self._quota.put(node, _EARLIER_USE, _size(_machine(node, "", self.earlier_use[node])))

    async def forget(self, node: str) -> None:
        """Remove all that is known of a node. Raises OSError if that cannot be written."""
        async with self._lock(node):
            await self._void(node, [(_VOID, (node,)), (_DROP_MACHINE, (node,))])
            self._instances.pop(node, None)
            self.earlier_use.pop(node, None)

    async def _void(self, node: str, statements: list[Statement]) -> None:
        await self._writer.commit(statements)
        self._quota.forget(node)
        for ref, fact in self._facts.pop(node, {}).items():
            self._note(ref, fact, None)

    async def _put_machine(self, node: str, instance: str, earlier_use: frozenset[str]) -> None:
        row = _machine(node, instance, earlier_use)
        self._quota.check(node, _EARLIER_USE, _size(row), stray=False)
        await self._writer.commit([(_PUT_MACHINE, row)], grows=bool(earlier_use))
        self._note_machine(*row)

    def _note_machine(self, node: str, instance: str, earlier_use: str) -> None:
        self._instances[node] = instance
        self.earlier_use.pop(node, None)
        self._quota.remove(node, _EARLIER_USE)
        if volumes := frozenset(json.loads(earlier_use)):
            self.earlier_use[node] = volumes
            self._quota.put(node, _EARLIER_USE, _size((node, instance, earlier_use)))

    async def put_event(self, node: str, ref: Ref, fact: Fact, *, stray: bool = False) -> bool:
        """Keep an Event, and of the node's Events the newest ones.

        Args:
            node: the node that told it.
            ref: the Event.
            fact: its state.
            stray: whether the hub does not know that the node has the object that the Event is about.

        Returns:
            Whether it is kept. False: it has no room.

        Raises:
            OSError: it cannot be written.
        """
        async with self._lock(node):
            row = _put(node, ref, fact)
            size = _size(row[1])
            if not self._quota.has_room_for_event(node, ref, size, stray=stray):
                return False
            oldest = self._quota.oldest_events(node, ref, size, most=MOST_EVENTS)
            # Before the write: if the caller is cancelled meanwhile, the Event counts as long as it may be kept.
            self._quota.put(node, ref, size, stray=stray)
            await self._writer.commit([row, *((_DROP, _key(node, old)) for old in oldest)], grows=True)
            for old in oldest:
                self._quota.remove(node, old)
            return True

    def stored(self, node: str = "") -> Iterator[tuple[str, Ref, Fact]]:
        """The facts in the database with their Events and nodes, in order; of one node alone if `node` names it.

        Raises:
            sqlite3.Error: the database cannot be read.
        """
        with contextlib.closing(connect_to_read(self._path)) as database:
            yield from _readable(database.execute(_SELECT_OF, (node,)) if node else database.execute(_SELECT_IN_ORDER))

    def _lock(self, node: str) -> asyncio.Lock:
        lock = self._locks.get(node)
        if lock is None:
            lock = self._locks[node] = asyncio.Lock()
        return lock

    def _note(self, ref: Ref, old: Fact | None, new: Fact | None) -> None:
        """A fact has changed: call the subscribers if it changes other objects."""
        if ref.kind == "CSINode":
            self._conflicts = None
            return
        if ref.kind in ("Pod", sole_use.KIND):
            return  # it changes no other object
        if ref.kind == "Node":
            self._note_use(ref.name, old, new)
        if ref.kind == "Node" and old and new and old.body.get("metadata") == new.body.get("metadata"):
            return  # the volumes in use change with every mount, and concern no other object
        self._retold()

    def _retold(self) -> None:
        self._told = None
        for changed in list(self._subscribers):
            changed()

    def _note_use(self, node: str, old: Fact | None, new: Fact | None) -> None:
        before, now = _in_use(old), _in_use(new)
        for volume in before - now:
            self._users[volume].discard(node)
            if not self._users[volume]:
                del self._users[volume]
        for volume in now - before:
            self._users.setdefault(volume, set()).add(node)

    def _read(self, database: sqlite3.Connection) -> None:
        self._facts, self._quota, self._users = {}, FactQuota(self._quota_bytes), {}
        self._instances.clear()
        self.earlier_use.clear()
        for machine in database.execute(_SELECT_MACHINES):
            self._note_machine(*machine)
        for row in database.execute(_SELECT):
            for node, ref, fact in _readable((row,)):
                self._quota.put(node, ref, _size(row))
                if ref.kind != "Event":
                    self._facts.setdefault(node, {})[ref] = fact
                if ref.kind == "Node":
                    self._note_use(node, None, fact)


def _in_use(fact: Fact | None) -> frozenset[str]:
    return frozenset((fact.body.get("status") or {}).get("volumesInUse") or ()) if fact is not None else frozenset()


def _all_in_use(facts: Mapping[Ref, Fact]) -> frozenset[str]:
    """What a node's facts say it uses. `volumesInUse` is unchecked, and must not pass for a claim, which is checked."""
    claims = {ref.name for ref in facts if ref.kind == sole_use.KIND}
    volumes = {name for ref, fact in facts.items() if ref.kind == "Node" for name in _in_use(fact)}
    return frozenset(claims | {name for name in volumes if name.startswith(IN_USE_PREFIX)})


def _machine(node: str, instance: str, earlier_use: frozenset[str]) -> tuple[str, str, str]:
    return node, instance, json.dumps(sorted(earlier_use))


def _key(node: str, ref: Ref) -> tuple[str, str, str, str]:
    return node, ref.kind, ref.namespace, ref.name


def _put(node: str, ref: Ref, fact: Fact) -> Statement:
    stamp = fact.stamp
    return _PUT, (*_key(node, ref), stamp.uid, stamp.version, fact.told_ns, encode_body(fact.body).decode())


def _size(row: Iterable[object]) -> int:
    return ROW_BYTES + sum(len(value.encode()) for value in row if isinstance(value, str))


def _readable(rows: Iterable[_Row]) -> Iterator[tuple[str, Ref, Fact]]:
    """The node, object and fact of each row that this version understands."""
    for node, kind, namespace, name, uid, version, told_ns, body in rows:
        ref = Ref(kind, namespace, name)
        try:
            check_ref(node, ref)
            yield node, ref, Fact(Stamp(uid, version), keep(json.loads(body), ref), told_ns)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("%s of node %s is unreadable and left out until the node sends it again: %s", ref, node, error)
