"""The fact tree: the directory of YAML files in which earlier hubs kept facts, moved into the database once.

    <state-dir>/facts/<node>/<kind>/[<namespace>/]<name>.yaml

Rules:

* All facts of the tree are in the database and on the disk before the tree is renamed, in one step. If the hub is
  killed in between, the next one repeats the import, which then changes nothing.
* Of two states of one fact the later one stays. So a tree is also right if an older hub has run since the first import.
* A file that cannot be read is left out, with a warning: its node sends the fact again.
"""

import hashlib
import logging
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from cloud.kinds.fields import is_name
from cloud.sources.manifests.documents import read_yaml
from cloud.sync.fact_kinds import NAMESPACED_KINDS, NODE_KINDS, UID, VERSION, Fact, check_ref, keep
from common.database import transaction
from common.errors import timestamp
from common.files import sync_directory, unused
from common.objects import Ref, Stamp, encode_body

log = logging.getLogger("csi_bridge.hub.facts")

_LONGEST_FILE_CHARS: Final = 200

_PUT_NEWER: Final = """
INSERT INTO facts (node, kind, namespace, name, uid, version, told_ns, body) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET uid = excluded.uid, version = excluded.version, told_ns = excluded.told_ns,
    body = excluded.body WHERE excluded.told_ns > facts.told_ns
"""


def import_tree(
    tree: Path, database: sqlite3.Connection, *, reached: Callable[[str], None] = lambda _step: None
) -> bool:
    """Move the facts of a tree into the database, and rename the tree. False: there is no tree.

    Args:
        tree: the directory `facts`.
        database: has the table of facts.
        reached: called after each step with its name: `written`, `renamed`.

    Raises:
        OSError: the tree cannot be read or renamed.
        sqlite3.Error: the facts cannot be written.
    """
    if not tree.is_dir():
        return False
    # The tree is renamed after the commit, so the commit must be on the disk, which it is not otherwise (NORMAL).
    database.execute("PRAGMA synchronous=FULL")
    count = 0
    with transaction(database):
        for node, ref, fact in _facts(tree):
            stamp, body = fact.stamp, encode_body(fact.body).decode()
            key = node, ref.kind, ref.namespace, ref.name
            database.execute(_PUT_NEWER, (*key, stamp.uid, stamp.version, fact.told_ns, body))
            count += 1
    database.execute("PRAGMA synchronous=NORMAL")
    reached("written")
    aside = unused(tree.with_name(f"{tree.name}-{timestamp(time.time())}.imported"))
    tree.rename(aside)
    sync_directory(tree.parent)
    reached("renamed")
    log.info("the %d facts of %s are in facts.db now; the files are in %s and may be deleted", count, tree, aside)
    return True


def _facts(tree: Path) -> Iterator[tuple[str, Ref, Fact]]:
    """All facts that can be read, with their nodes, the oldest first."""
    found = sorted(
        (path.stat().st_mtime_ns, directory.name, path)
        for directory in tree.iterdir()
        if is_name(directory.name) and directory.is_dir()
        for kind in (*NODE_KINDS, *NAMESPACED_KINDS)
        for path in (directory / kind).glob("*.yaml" if kind in NODE_KINDS else "*/*.yaml")
        if not path.name.startswith(".")
    )
    for told_ns, node, path in found:
        try:
            (document,) = read_yaml(path.read_text("utf-8"))
            ref, fact = _from_document(document.value, told_ns)
            check_ref(node, ref)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("%s is unreadable and left out until the node sends it again: %s", path, error)
            continue
        if _path(tree / node, ref) == path:  # else somebody made a copy
            yield node, ref, fact


def _from_document(value: dict[str, Any], told_ns: int) -> tuple[Ref, Fact]:
    """The fact of one file. Raises the errors of a wrong one."""
    metadata = value["metadata"]
    ref = Ref(value["kind"], metadata.get("namespace", ""), metadata["name"])
    body = keep(value, ref)
    return ref, Fact(Stamp(metadata["annotations"][UID], metadata["annotations"][VERSION]), body, told_ns)


def _path(directory: Path, ref: Ref) -> Path:
    """The file of a fact. A name too long for a file is cut, with a hash of all of it."""
    name = ref.name
    if len(name) > _LONGEST_FILE_CHARS:
        name = f"{name[:_LONGEST_FILE_CHARS]}~{hashlib.sha256(name.encode()).hexdigest()[:32]}"
    return directory / ref.kind / ref.namespace / f"{name}.yaml"
