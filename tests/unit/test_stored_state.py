"""Stored copies of older databases become today's, with all their rows, and no schema changes without such a copy."""

from __future__ import annotations

import importlib
import pkgutil
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

import cloud
import cloud.placement.sqlite_rows
import cloud.store
import cloud.sync.fact_table
import cloud.trust.trust_store
import edge
import edge.manager.states
import edge.metastore
from common.database import Schema, open_database
from tests.kit.stored import STORED, restore_database

if TYPE_CHECKING:
    from pathlib import Path

SCHEMAS = {
    "edge.db": edge.metastore.SCHEMA,
    "facts.db": cloud.sync.fact_table.SCHEMA,
    "hub.db": cloud.store.SCHEMA,
    "placement.db": cloud.placement.sqlite_rows.SCHEMA,
    "trust.db": cloud.trust.trust_store.SCHEMA,
    "volumes.db": edge.manager.states.SCHEMA,
}

RENAMED = {"claims": "holds"}
"""Tables that a migration renamed: the old name → today's."""

DUMPS = sorted(STORED.rglob("*.sql"))


def version(dump: Path) -> int:
    return int(dump.read_text().splitlines()[0].removeprefix("PRAGMA user_version=").removesuffix(";"))


def columns(database: sqlite3.Connection) -> dict[str, set[tuple[object, ...]]]:
    """By table: its columns, each with its type, whether it may be NULL, and its place in the primary key."""
    tables = [name for (name,) in database.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
    found: dict[str, set[tuple[object, ...]]] = {}
    for table in tables:
        rows = database.execute(f"PRAGMA table_info({table})")
        found[table] = {(name, kind, not_null, key) for _, name, kind, not_null, _, key in rows}
    return found


def counts(database: sqlite3.Connection) -> dict[str, int]:
    return {table: database.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in columns(database)}


def test_every_schema_of_the_program_is_known_here() -> None:
    found = set()
    for package in (cloud, edge):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            values = vars(importlib.import_module(module.name)).values()
            found |= {id(value) for value in values if isinstance(value, Schema)}
    assert found == {id(schema) for schema in SCHEMAS.values()}


def test_each_schema_version_has_a_stored_copy_of_the_version_before_it() -> None:
    stored = {(dump.stem, version(dump)) for dump in DUMPS}
    needed = {(name, older) for name, schema in SCHEMAS.items() for older in range(1, schema.version)}
    assert needed - stored == set()
    assert {name for name, _ in stored} <= set(SCHEMAS)


@pytest.mark.parametrize("dump", DUMPS, ids=lambda dump: str(dump.relative_to(STORED)))
def test_a_stored_copy_gets_todays_tables_and_keeps_its_rows(dump: Path, tmp_path: Path) -> None:
    schema = SCHEMAS[dump.stem]
    restore_database(dump, tmp_path / "older" / dump.stem)
    with closing(sqlite3.connect(tmp_path / "older" / dump.stem)) as older:
        before = counts(older)
    opened = open_database(tmp_path / "older" / dump.stem, schema, check=lambda _: None)
    new = open_database(tmp_path / "new.db", schema, check=lambda _: None)
    with closing(opened.connection) as migrated, closing(new.connection) as fresh:
        assert (opened.damaged, opened.was_new) == (None, False)
        assert migrated.execute("PRAGMA user_version").fetchone() == (schema.version,)
        assert columns(migrated) == columns(fresh)
        after = counts(migrated)
        assert {table: after[RENAMED.get(table, table)] for table in before} == before
