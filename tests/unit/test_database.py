"""A database's shape: older files are migrated with all their rows, and newer files are left exactly as they are."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from common.database import Schema, connect_to_read, open_database
from common.errors import NewerState, SettingsError

if TYPE_CHECKING:
    from pathlib import Path

    from common.database import Opened

TABLE = "CREATE TABLE items (key TEXT PRIMARY KEY) STRICT"
FIRST = Schema("hub", ((TABLE,),))
SECOND = Schema("hub", ((TABLE,), ("ALTER TABLE items ADD COLUMN size INTEGER NOT NULL DEFAULT 7",)))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "test.db"


@pytest.fixture
def older(path: Path) -> Path:
    """A database of the first version with one row."""
    path.parent.mkdir()
    with closing(opened(path, FIRST).connection) as database:
        database.execute("INSERT INTO items VALUES ('a')")
    return path


def opened(path: Path, schema: Schema) -> Opened:
    return open_database(path, schema, check=lambda _: None)


def rows(path: Path, schema: Schema) -> list[tuple[object, ...]]:
    with closing(opened(path, schema).connection) as database:
        return database.execute("SELECT * FROM items").fetchall()


def version(path: Path) -> int:
    with closing(sqlite3.connect(path)) as database:
        found: int = database.execute("PRAGMA user_version").fetchone()[0]
        return found


def contents(directory: Path) -> dict[str, bytes]:
    """All files but SQLite's shared memory, which holds no state."""
    return {file.name: file.read_bytes() for file in directory.iterdir() if not file.name.endswith("-shm")}


def test_an_older_file_gets_the_columns_of_the_newer_schema_and_keeps_its_rows(
    older: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    assert rows(older, SECOND) == [("a", 7)]
    assert version(older) == 2
    assert caplog.messages == [f"{older} is migrated from schema 1 to 2"]


def test_a_new_file_has_the_newest_schema(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path.parent.mkdir()
    assert rows(path, SECOND) == []
    assert version(path) == 2
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("statements", "why"),
    [
        (("INSERT INTO nowhere VALUES (1)",), "no such table: nowhere"),
        (("INSERT INTO items VALUES ('a')", "INSERT INTO items VALUES ('a')"), "UNIQUE constraint failed"),
    ],
)
def test_a_migration_that_fails_changes_nothing_and_the_next_start_tries_it_again(
    older: Path, statements: tuple[str, ...], why: str
) -> None:
    broken = Schema("hub", ((TABLE,), ("DELETE FROM items", *statements)))
    with pytest.raises(sqlite3.OperationalError, match=f"^the migration to schema 2 failed: {why}"):
        opened(older, broken)
    assert version(older) == 1
    assert [file.name for file in older.parent.iterdir()] == ["test.db"]  # it is not moved aside
    assert rows(older, SECOND) == [("a", 7)]


def test_a_newer_file_is_refused_in_one_sentence(older: Path) -> None:
    opened(older, SECOND).connection.close()
    with pytest.raises(NewerState) as refused:
        opened(older, FIRST)
    assert isinstance(refused.value, SettingsError)
    assert str(refused.value) == (
        f"--state-dir={older}: was written by a newer hub (schema 2, this one knows 1); start the newer version again, "
        f"or go back as docs/recovery.md tells"
    )


@pytest.mark.parametrize("mode", ["wal", "delete"])
def test_nothing_in_a_newer_file_is_touched_nor_beside_it(older: Path, mode: str) -> None:
    with closing(opened(older, SECOND).connection) as database:
        database.execute(f"PRAGMA journal_mode={mode}")
    before = contents(older.parent)
    with pytest.raises(NewerState):
        opened(older, FIRST)
    assert contents(older.parent) == before
    assert [file.name for file in older.parent.iterdir()] == ["test.db"]


def test_a_newer_program_that_was_killed_after_its_migration_counts_as_newer_and_keeps_its_journal(
    older: Path, tmp_path: Path
) -> None:
    killed = tmp_path / "killed"
    with closing(opened(older, SECOND).connection):
        shutil.copytree(older.parent, killed)
    before = contents(killed)
    assert set(before) == {"test.db", "test.db-wal"}
    with pytest.raises(NewerState):
        opened(killed / "test.db", FIRST)
    assert contents(killed) == before
    assert rows(killed / "test.db", SECOND) == [("a", 7)]


def test_a_file_that_is_damaged_twice_within_a_second_is_kept_twice(path: Path) -> None:
    path.parent.mkdir()
    for content in (b"first " * 100, b"second " * 100):
        path.write_bytes(content)
        opened(path, FIRST).connection.close()
    kept = [file.read_bytes() for file in path.parent.iterdir() if ".corrupt" in file.name]
    assert sorted(kept) == [b"first " * 100, b"second " * 100]


def test_no_connection_keeps_more_than_half_a_mebibyte_of_pages(older: Path) -> None:
    with closing(opened(older, FIRST).connection) as writer, closing(connect_to_read(older)) as reader:
        for connection in (writer, reader):
            assert connection.execute("PRAGMA cache_size").fetchone() == (-512,)
