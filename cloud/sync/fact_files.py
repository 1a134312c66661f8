"""The fact files: what the nodes told, as YAML on the hub's disk, and what follows from it.

Rules:

* A fact is in its file (written beside it and renamed) before it counts, so an acknowledged fact outlives the hub.
* Whose fact it is, and whether it makes sense, was checked before it comes here.
* Events are kept for people: the newest of each node, and nobody asks for them.
* All that touches the disk is done in a thread, the making of YAML too: the largest fact's takes a quarter of a second.
"""

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from cloud.kinds.fields import is_name
from cloud.kinds.kind_rules import pick
from cloud.sources.manifests.binding import ClaimStatus, Told
from cloud.sources.manifests.documents import read_yaml, write_yaml
from cloud.sync.fact_kinds import NAMESPACED_KINDS, NODE_KINDS, UID, VERSION, Fact, check_ref, keep
from common.errors import SettingsError
from common.objects import Ref, Stamp
from common.quantity import parse_bytes

log = logging.getLogger("csi_bridge.hub.facts")

MOST_FACTS: Final = 10_000
"""Of one node, events apart: each is a claim or a pod."""

MOST_EVENTS: Final = 1_000
"""Of one node."""

_SHOWN_CHARS: Final = 100

_MOST_SHOWN: Final = 10
"""Nodes that a sentence names."""

_LONGEST_FILE_CHARS: Final = 200

_API_VERSIONS: Final = NODE_KINDS | NAMESPACED_KINDS


class FactFiles:
    """The facts of all nodes, in `<state-dir>/facts/<node>/<kind>/[<namespace>/]<name>.yaml`."""

    def __init__(self, state_dir: Path) -> None:
        """Read all there are. A file that cannot be read is left out: its node tells it again.

        Raises:
            SettingsError: the directory cannot be used.
        """
        self._root = state_dir / "facts"
        self._sizes_path = state_dir / "claim-sizes.json"
        self._facts: dict[str, dict[Ref, Fact]] = {}
        self._events: dict[str, dict[Path, None]] = {}
        """By node: the files of its events, the oldest first."""
        self._told: Told | None = None
        self._conflicts: list[str] | None = None
        self._trouble = ""
        """Why the disk takes nothing; empty while it does."""
        self._lock = asyncio.Lock()
        self._subscribers: list[Callable[[], None]] = []
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            for directory in sorted(self._root.iterdir()):
                if is_name(directory.name) and directory.is_dir():
                    self._load(directory.name)
        except OSError as error:
            raise SettingsError("--state-dir", str(state_dir), f"cannot be used: {error}") from error

    def of(self, node: str) -> Mapping[Ref, Fact]:
        """A node's facts, without its events."""
        return self._facts.get(node, {})

    def nodes(self) -> Iterator[str]:
        """The nodes that have told any, without those that told events alone."""
        return iter(list(self._facts))

    def told(self) -> Told:
        """All that changes other objects. The same one until one of these facts changes."""
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
                node: pick(facts[ref].body, "metadata")
                for node, facts in self._facts.items()
                if (ref := Ref("Node", "", node)) in facts
            }
            self._told = Told(in_order, nodes)
        return self._told

    def problems(self) -> list[str]:
        """A disk that takes nothing, and nodes on which a driver gave the same node id (RULE C5)."""
        if self._conflicts is None:
            self._conflicts = list(_id_conflicts(self._facts))
        trouble = (
            f"the hub cannot store the facts that nodes send, and the nodes keep them until it can: {self._trouble}"
        )
        return [*([trouble] if self._trouble else []), *self._conflicts]

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Be told, on the loop, when `told()` is another one, until the function returned is called."""
        self._subscribers.append(changed)
        return lambda: self._subscribers.remove(changed)

    async def put(self, node: str, ref: Ref, fact: Fact) -> None:
        """Keep a fact. Cancelled, it may be kept or not.

        Raises:
            ValueError: the node has told too many.
            OSError: it cannot be written.
        """
        async with self._lock:
            facts = self._facts.setdefault(node, {})
            if ref not in facts and len(facts) >= MOST_FACTS:
                raise ValueError(f"node {node} sends more than {MOST_FACTS} objects")
            if facts.get(ref) == fact:
                return
            await self._on_disk(_write_fact, self._path(node, ref), ref, fact)
            old = facts.pop(ref, None)  # so that it comes last
            facts[ref] = fact
            self._note(ref, old, fact)

    async def remove(self, node: str, ref: Ref) -> None:
        """Forget a fact.

        Raises:
            OSError: its file cannot be removed.
        """
        async with self._lock:
            await self._on_disk(_remove_file, self._path(node, ref))
            self._note(ref, self._facts.get(node, {}).pop(ref, None), None)

    async def forget(self, node: str) -> None:
        """Forget all that a node told: it is gone for good.

        Raises:
            OSError: its directory cannot be removed.
        """
        async with self._lock:
            if is_name(node):
                await self._on_disk(_remove_tree, self._root / node)
            self._events.pop(node, None)
            for ref, fact in self._facts.pop(node, {}).items():
                self._note(ref, fact, None)

    async def put_event(self, node: str, ref: Ref, fact: Fact) -> None:
        """Keep an event, and of the node's events the newest.

        Raises:
            OSError: it cannot be written.
        """
        async with self._lock:
            path = self._path(node, ref)
            events = self._events.setdefault(node, {})
            await self._on_disk(_write_fact, path, ref, fact)
            events.pop(path, None)
            events[path] = None
            while len(events) > MOST_EVENTS:
                oldest = next(iter(events))
                await self._on_disk(_remove_file, oldest)
                del events[oldest]

    def sizes(self) -> dict[str, str]:
        """The sizes that claims had, as `keep_sizes` was told last; without what cannot be read."""
        try:
            sizes = json.loads(self._sizes_path.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            log.warning("%s is unreadable, and claims get the size of their volumes: %s", self._sizes_path, error)
            return {}
        return {key: size for key, size in sizes.items() if _is_size(size)} if isinstance(sizes, dict) else {}

    def keep_sizes(self, sizes: Mapping[str, str]) -> None:
        """Keep the sizes of claims. Any thread may.

        Raises:
            OSError: they cannot be written.
        """
        # No node tells them again: without the fsync a power cut may leave an empty file.
        _write(self._sizes_path, json.dumps(sizes, indent=1, sort_keys=True).encode(), durable=True)

    async def _on_disk(self, work: Callable[..., None], *what: object) -> None:
        """Work in a thread.

        Raises:
            OSError: the disk does not take it; `problems` tells until it takes something.
        """
        try:
            await asyncio.to_thread(work, *what)
        except OSError as error:
            self._trouble = error.strerror or str(error)
            raise
        self._trouble = ""

    def _note(self, ref: Ref, old: Fact | None, new: Fact | None) -> None:
        """A fact has changed: those that it concerns hear of it."""
        if ref.kind == "CSINode":
            self._conflicts = None
            return
        if ref.kind == "Pod":
            return  # what it says of the pod changes no other object
        if ref.kind == "Node" and old and new and old.body.get("metadata") == new.body.get("metadata"):
            return  # what is in use changes with every mount, and concerns no other object
        self._told = None
        for changed in list(self._subscribers):
            changed()

    def _path(self, node: str, ref: Ref) -> Path:
        """Where a checked fact is. A name too long for a file keeps its beginning, and a hash of all of it."""
        name = ref.name
        if len(name) > _LONGEST_FILE_CHARS:
            name = f"{name[:_LONGEST_FILE_CHARS]}~{hashlib.sha256(name.encode()).hexdigest()[:32]}"
        return self._root / node / ref.kind / ref.namespace / f"{name}.yaml"

    def _load(self, node: str) -> None:
        found = [
            (path.stat().st_mtime_ns, kind, path)
            for kind in _API_VERSIONS
            for path in (self._root / node / kind).glob("*.yaml" if kind in NODE_KINDS else "*/*.yaml")
            if not path.name.startswith(".")
        ]
        facts: dict[Ref, Fact] = {}
        for written_ns, kind, path in sorted(found):
            if kind == "Event":
                self._events.setdefault(node, {})[path] = None
            elif (loaded := self._read(node, path, written_ns)) is not None:
                facts[loaded[0]] = loaded[1]
        if facts:
            self._facts[node] = facts

    def _read(self, node: str, path: Path, written_ns: int) -> tuple[Ref, Fact] | None:
        try:
            (document,) = read_yaml(path.read_text("utf-8"))
            ref, fact = _from_document(document.value, written_ns)
            check_ref(node, ref)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("%s is unreadable and left out until the node sends it again: %s", path, error)
            return None
        return (ref, fact) if self._path(node, ref) == path else None  # else a copy that somebody made


def _id_conflicts(facts: Mapping[str, Mapping[Ref, Fact]]) -> Iterator[str]:
    holders: dict[tuple[str, str], set[str]] = {}
    for node, told in facts.items():
        fact = told.get(Ref("CSINode", "", node))
        for driver in fact.body["spec"]["drivers"] if fact is not None else ():
            holders.setdefault((driver["name"], driver["nodeID"]), set()).add(node)
    for (driver, node_id), nodes in sorted(holders.items()):
        if len(nodes) > 1:
            yield (
                f"CSI driver {driver} gave the node ID {_shown(node_id)} on the nodes {_named(nodes)}: "
                f"volumes may be attached to the wrong one; let the driver give each node an ID of its own "
                f"(mostly its flag --nodeid, from spec.nodeName)"
            )


def _named(nodes: Collection[str]) -> str:
    """Some nodes, for people."""
    more = len(nodes) - _MOST_SHOWN
    return ", ".join(sorted(nodes)[:_MOST_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _shown(node_id: str) -> str:
    return repr(node_id if len(node_id) <= _SHOWN_CHARS else f"{node_id[:_SHOWN_CHARS]}…")


def _document(ref: Ref, fact: Fact) -> bytes:
    metadata = {
        "name": ref.name,
        **({"namespace": ref.namespace} if ref.namespace else {}),
        **fact.body.get("metadata", {}),
    }
    metadata["annotations"] = {**metadata.get("annotations", {}), VERSION: fact.stamp.version, UID: fact.stamp.uid}
    body = {name: part for name, part in fact.body.items() if name != "metadata"}
    return write_yaml({"apiVersion": _API_VERSIONS[ref.kind], "kind": ref.kind, "metadata": metadata, **body})


def _from_document(value: dict[str, Any], written_ns: int) -> tuple[Ref, Fact]:
    """What `_document` wrote. Raises the errors of a wrong one."""
    metadata = value["metadata"]
    ref = Ref(value["kind"], metadata.get("namespace", ""), metadata["name"])
    body = keep(value, ref)
    stamp = Stamp(metadata["annotations"][UID], metadata["annotations"][VERSION])
    return ref, Fact(stamp, body, written_ns)


def _is_size(text: object) -> bool:
    """Whether a text that somebody may have written by hand is a size."""
    try:
        return isinstance(text, str) and parse_bytes(text) >= 0
    except ValueError:
        return False


def _write_fact(path: Path, ref: Ref, fact: Fact) -> None:
    _write(path, _document(ref, fact))


def _remove_file(path: Path) -> None:
    """Remove a file, and its directory with the last one: a node may tell of any number of namespaces."""
    path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        path.parent.rmdir()


def _remove_tree(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(path)


def _write(path: Path, data: bytes, *, durable: bool = False) -> None:
    """Beside it, then into its place: half a file is never in that place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}")
    try:
        with beside.open("wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        beside.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise
