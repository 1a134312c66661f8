"""The hub's memory on disk: what is written comes back, and what cannot be used ends in words or is moved aside."""

from __future__ import annotations

import logging
import sqlite3
import threading
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from cloud.store import SCHEMA_VERSION, Store, StoredNode
from common.errors import SettingsError
from common.reports import GET_PLUGIN_INFO, Answer, DriverReport

if TYPE_CHECKING:
    from pathlib import Path

REPORT = DriverReport("d.example", "n1", {GET_PLUGIN_INFO: Answer(0, body=b"\n\x01d")})
N1 = StoredNode("n1", "i-1", 3, 1_700_000_000.25, connected=True, reports=(REPORT,))
N2 = StoredNode("n2", "i-2", 1, 1_700_000_001.0, connected=False, reports=())


async def stored(directory: Path) -> list[StoredNode]:
    """What a hub that starts now would find."""
    store = Store(directory)
    nodes = store.nodes()
    await store.close()
    return sorted(nodes, key=lambda node: node.name)


async def keep(directory: Path, *nodes: StoredNode) -> None:
    """What a hub leaves that knew these nodes."""
    store = Store(directory)
    for node in nodes:
        store.save(node)
    await store.close()


def database(directory: Path) -> closing[sqlite3.Connection]:
    return closing(sqlite3.connect(directory / "hub.db"))


async def test_a_new_store_is_empty_and_its_directory_is_made(tmp_path: Path) -> None:
    assert await stored(tmp_path / "a" / "b") == []
    assert (tmp_path / "a" / "b" / "hub.db").is_file()


async def test_what_was_saved_is_there_after_a_restart(tmp_path: Path) -> None:
    await keep(tmp_path, N1, N2)
    assert await stored(tmp_path) == [N1, N2]


async def test_of_a_node_only_the_newest_state_is_kept(tmp_path: Path) -> None:
    later = StoredNode("n1", "i-1", 4, 1_700_000_009.0, connected=False, reports=())
    await keep(tmp_path, N1, later)
    assert await stored(tmp_path) == [later]


async def test_the_end_waits_for_all_writes(tmp_path: Path) -> None:
    many = [StoredNode(f"n{number:04}", "i", 1, 0.0, connected=False, reports=()) for number in range(2_000)]
    await keep(tmp_path, *many)
    assert await stored(tmp_path) == many


async def test_no_write_is_lost_between_two_threads(tmp_path: Path) -> None:
    """The loop queues a write at the moment when the store's thread takes what waits."""
    store = Store(tmp_path)
    written = threading.Semaphore(0)
    for _ in range(5_000):
        store._submit(lambda _database: written.release())
    await store.close()
    assert written._value == 5_000


async def test_names_of_all_kinds_come_back(tmp_path: Path) -> None:
    odd = StoredNode("größe '; DROP TABLE nodes; --", "\u4e2d", 2**62, 0.5, connected=True, reports=())
    await keep(tmp_path, odd)
    assert await stored(tmp_path) == [odd]


@pytest.mark.parametrize("content", [b"no database at all" * 100, b"SQLite format 3\x00" + b"\xff" * 5_000])
async def test_a_file_that_is_no_database_is_moved_aside_and_named(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "hub.db").write_bytes(content)
    assert await stored(tmp_path) == []
    assert (tmp_path / "hub.corrupt").read_bytes() == content
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert f"{tmp_path / 'hub.db'} is damaged" in record.getMessage()
    assert str(tmp_path / "hub.corrupt") in record.getMessage()


async def test_pages_damaged_in_the_middle_are_found_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    many = [StoredNode(f"n{number:04}", "i" * 100, 1, 0.0, connected=False, reports=()) for number in range(500)]
    await keep(tmp_path, *many)
    content = bytearray((tmp_path / "hub.db").read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)  # all but the header's page
    (tmp_path / "hub.db").write_bytes(content)
    assert await stored(tmp_path) == []
    assert "is damaged" in caplog.records[0].getMessage()
    await keep(tmp_path, N1)
    assert await stored(tmp_path) == [N1]


async def test_a_newer_hubs_store_is_left_alone(tmp_path: Path) -> None:
    await keep(tmp_path, N1)
    with database(tmp_path) as newer:
        newer.execute(f"PRAGMA user_version={SCHEMA_VERSION + 1}")
    with pytest.raises(SettingsError, match=r"--state-dir=.*hub.db: was written by a newer hub \(schema 2"):
        Store(tmp_path)
    with database(tmp_path) as newer:
        assert newer.execute("SELECT count(*) FROM nodes").fetchone() == (1,)


async def test_reports_that_nobody_can_read_are_dropped_and_the_node_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await keep(tmp_path, N1, N2)
    with database(tmp_path) as other:
        other.execute("UPDATE nodes SET reports = x'00ff' WHERE name = 'n1'")
        other.commit()
    (n1, n2) = await stored(tmp_path)
    assert (n1.name, n1.boot, n1.reports) == ("n1", 3, ())
    assert n2 == N2
    assert "the stored reports of node n1 are unreadable" in caplog.records[0].getMessage()


def test_a_directory_that_is_a_file_is_the_operators_mistake(tmp_path: Path) -> None:
    (tmp_path / "state").touch()
    with pytest.raises(SettingsError, match=r"--state-dir=.*cannot be written"):
        Store(tmp_path / "state")


def test_a_directory_in_the_databases_place_is_the_operators_mistake(tmp_path: Path) -> None:
    (tmp_path / "hub.db").mkdir()
    with pytest.raises(SettingsError, match=r"--state-dir=.*cannot be written: unable to open database file"):
        Store(tmp_path)


async def test_a_write_that_fails_is_counted_and_the_next_one_works(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(tmp_path)

    def fail(_database: sqlite3.Connection) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    store._submit(fail)
    await run_writes(store)
    store._submit(fail)
    await run_writes(store)
    store.save(N1)
    await store.close()
    assert store.failures == 2
    assert [record.getMessage() for record in caplog.records] == [
        f"cannot write {tmp_path / 'hub.db'}; the hub goes on without it",
        f"cannot write {tmp_path / 'hub.db'}: database or disk is full",
    ]
    assert await stored(tmp_path) == [N1]


async def test_a_write_that_fails_as_nobody_foresaw_is_counted_with_its_traceback_and_writing_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(tmp_path)

    def fail(_database: sqlite3.Connection) -> None:
        raise RuntimeError("a bug")

    for _ in range(2):
        store._submit(fail)
        await run_writes(store)
    store.save(N1)
    await store.close()
    assert store.failures == 2
    assert [str(record.exc_info[1]) for record in caplog.records if record.exc_info] == ["a bug", "a bug"]
    assert await stored(tmp_path) == [N1]


async def test_the_end_closes_the_file_also_when_the_last_write_fails(tmp_path: Path) -> None:
    store = Store(tmp_path)
    gate = threading.Event()
    store._thread.submit(gate.wait)
    store._submit(lambda _database: 1 // 0)
    gate.set()
    await store.close()
    assert store.failures == 1
    with pytest.raises(sqlite3.ProgrammingError):
        store._database.execute("SELECT 1")


async def run_writes(store: Store) -> None:
    """Wait until the store's thread has nothing left to do."""
    store._thread.submit(lambda: None).result()


async def test_writes_that_wait_together_are_one_transaction(tmp_path: Path) -> None:
    store = Store(tmp_path)
    begun: list[bool] = []

    def write(database: sqlite3.Connection) -> None:
        begun.append(database.in_transaction)
        database.execute("DELETE FROM nodes")

    gate = threading.Event()
    store._thread.submit(gate.wait)
    for _ in range(3):
        store._submit(write)
    gate.set()
    await store.close()
    assert begun == [False, True, True]
