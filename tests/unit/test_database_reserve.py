"""The reserve: a database takes writes on a full disk, says so, and has its reserve again once there is room."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from common.database import Schema, open_database
from common.database_reserve import RESERVE_BYTES, Reserve
from common.database_writer import DatabaseWriter, WriteFailed
from tests.kit.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = Schema("test", (("CREATE TABLE items (body TEXT) STRICT",),))
INSERT = "INSERT INTO items VALUES (?)", ("x" * 1_000,)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "test.db"


def opened(path: Path) -> sqlite3.Connection:
    return open_database(path, SCHEMA, check=lambda _: None).connection


def fill_disk(connection: sqlite3.Connection) -> None:
    """Let the database grow no more, as on a full disk."""
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count={pages}")


def test_a_database_holds_the_room_in_its_file_and_in_its_journal(path: Path) -> None:
    reserve = Reserve(path)
    with closing(opened(path)) as database:
        reserve.prepare(database)
        assert path.stat().st_size >= RESERVE_BYTES
        assert path.with_name("test.db-wal").stat().st_size >= RESERVE_BYTES
        assert not reserve.is_low(database)
        assert database.execute("SELECT name FROM sqlite_schema").fetchall() == [("items",)]


def test_inserts_go_on_on_a_full_disk_until_the_room_is_used(path: Path) -> None:
    reserve = Reserve(path)
    with closing(opened(path)) as database:
        reserve.prepare(database)
        fill_disk(database)
        journal = path.with_name("test.db-wal").stat().st_size
        for _ in range(1_500):
            database.execute(*INSERT)
        assert path.with_name("test.db-wal").stat().st_size == journal
        assert reserve.is_low(database)
        with pytest.raises(sqlite3.OperationalError, match="full"):
            reserve.fill(database)
        assert database.execute("SELECT count(*) FROM items").fetchone() == (1_500,)


def test_a_start_on_a_full_disk_holds_the_room_that_is_left(path: Path) -> None:
    with closing(opened(path)) as database:
        Reserve(path).prepare(database)
        for _ in range(500):
            database.execute(*INSERT)
    with closing(opened(path)) as database:
        fill_disk(database)
        with pytest.raises(sqlite3.OperationalError, match="full"):
            Reserve(path).prepare(database)
        assert path.with_name("test.db-wal").stat().st_size > RESERVE_BYTES // 2
        for _ in range(500):
            database.execute(*INSERT)


def test_the_room_is_kept_between_two_runs_and_is_the_databases_again_in_the_next(path: Path) -> None:
    between = path.with_name("test.db-reserve")
    Reserve(path).keep()
    assert between.stat().st_blocks * 512 >= RESERVE_BYTES
    Reserve(path)
    assert not between.exists()


def test_a_table_that_a_killed_process_left_is_removed(path: Path) -> None:
    with closing(opened(path)) as database:
        database.execute("CREATE TABLE reserve (room BLOB)")
        Reserve(path).prepare(database)
        assert database.execute("SELECT name FROM sqlite_schema").fetchall() == [("items",)]


async def test_a_writer_says_that_it_uses_the_reserve_and_fills_it_when_there_is_room(path: Path) -> None:
    database = opened(path)
    writer = DatabaseWriter(path, database, reserve=Reserve(path), reserve_after_s=0, retry_s=0)
    await until(lambda: path.stat().st_size >= RESERVE_BYTES)
    await writer.transact(fill_disk)
    await writer.commit([INSERT] * 1_500)
    await until(lambda: "full" in writer.shortage)
    assert writer.trouble == ""
    await writer.transact(lambda connection: connection.execute("PRAGMA max_page_count=1000000"))
    await until(lambda: writer.shortage == "")
    await writer.close()
    assert path.with_name("test.db-reserve").exists()


async def test_a_write_that_grows_leaves_the_last_room_of_the_disk_to_others(path: Path) -> None:
    writer = DatabaseWriter(path, opened(path), least_free_bytes=1 << 60)
    with pytest.raises(WriteFailed, match="KiB left"):
        await writer.commit([INSERT], grows=True)
    assert "KiB left" in writer.trouble
    await writer.commit([INSERT])
    assert writer.trouble == ""
    await writer.close()
