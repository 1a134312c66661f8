"""A database: its schema, and its writer, from which every write reaches the disk or its caller hears why not."""

import asyncio
import shutil
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import closing, nullcontext
from pathlib import Path

import pytest

from common.errors import SettingsError
from common.store import database_writer
from common.store.database import Schema, connect_to_read, open_database
from common.store.database_writer import DatabaseWriter, LateConnection, Statement, WriteFailed
from tests.kit.waiting import until

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
    with closing(opened(path, FIRST)) as database:
        database.execute("INSERT INTO items VALUES ('a')")
    return path


def opened(path: Path, schema: Schema) -> sqlite3.Connection:
    return open_database(path, schema, check=lambda _: None)


def rows(path: Path, schema: Schema) -> list[tuple[object, ...]]:
    with closing(opened(path, schema)) as database:
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


@pytest.mark.parametrize("mode", ["wal", "delete"])
def test_nothing_in_a_newer_file_is_touched_nor_beside_it(older: Path, mode: str) -> None:
    with closing(opened(older, SECOND)) as database:
        database.execute(f"PRAGMA journal_mode={mode}")
    before = contents(older.parent)
    with pytest.raises(SettingsError, match="was written by a newer"):
        opened(older, FIRST)
    assert contents(older.parent) == before
    assert [file.name for file in older.parent.iterdir()] == ["test.db"]


def test_a_newer_program_that_was_killed_after_its_migration_counts_as_newer_and_keeps_its_journal(
    older: Path, tmp_path: Path
) -> None:
    killed = tmp_path / "killed"
    with closing(opened(older, SECOND)):
        shutil.copytree(older.parent, killed)
    before = contents(killed)
    assert set(before) == {"test.db", "test.db-wal"}
    with pytest.raises(SettingsError, match="was written by a newer"):
        opened(killed / "test.db", FIRST)
    assert contents(killed) == before
    assert rows(killed / "test.db", SECOND) == [("a", 7)]


def test_a_file_that_is_damaged_twice_within_a_second_is_kept_twice(path: Path) -> None:
    path.parent.mkdir()
    for content in (b"first " * 100, b"second " * 100):
        path.write_bytes(content)
        opened(path, FIRST).close()
    kept = [file.read_bytes() for file in path.parent.iterdir() if ".corrupt" in file.name]
    assert sorted(kept) == [b"first " * 100, b"second " * 100]


def test_no_connection_keeps_more_than_half_a_mebibyte_of_pages(older: Path) -> None:
    with closing(opened(older, FIRST)) as writer, closing(connect_to_read(older)) as reader:
        for connection in (writer, reader):
            assert connection.execute("PRAGMA cache_size").fetchone() == (-512,)


# -------------------- the writer --------------------


SCHEMA = Schema("test", (("CREATE TABLE items (key TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT",),))
FULL = "CREATE TRIGGER full BEFORE INSERT ON items BEGIN SELECT RAISE(ABORT, 'disk is full'); END"


def insert(key: str, value: int = 0) -> Statement:
    return "INSERT OR REPLACE INTO items VALUES (?, ?)", (key, value)


class Slow:
    """A value that the writer's thread waits for."""

    def __init__(self, begun: threading.Event, end: threading.Event) -> None:
        self._begun, self._end = begun, end

    def __conform__(self, _protocol: object) -> int:
        self._begun.set()
        self._end.wait()
        return 0


class WrittenDatabase:
    """A database with its writer.

    Attributes:
    """

    def __init__(self, directory: Path, *, retry_s: float) -> None:
        self.path = directory / "test.db"
        self.connection = open_database(self.path, SCHEMA, check=lambda _: None)
        self.writer = DatabaseWriter(self.path, self.connection, retry_s=retry_s)

    def change(self, sql: str) -> None:
        """Change the database as another process does."""
        with closing(sqlite3.connect(self.path)) as other:
            other.execute(sql)
            other.commit()

    def items(self) -> dict[str, int]:
        """What the disk has."""
        with closing(sqlite3.connect(self.path)) as other:
            return dict(other.execute("SELECT key, value FROM items ORDER BY rowid"))

    def hold(self) -> Callable[[], None]:
        """Keep the writer's thread busy until the returned function is called."""
        held = threading.Event()
        self.is_held = threading.Event()
        self.busy = asyncio.ensure_future(self.writer.commit([("SELECT ?", (Slow(self.is_held, held),))]))
        return held.set


@pytest.fixture
async def patient(tmp_path: Path) -> AsyncIterator[WrittenDatabase]:
    """What fails is not retried before the test is over."""
    written = WrittenDatabase(tmp_path, retry_s=3_600.0)
    yield written
    await written.writer.close()


@pytest.fixture
async def written(tmp_path: Path) -> AsyncIterator[WrittenDatabase]:
    """What fails is retried at once."""
    written = WrittenDatabase(tmp_path, retry_s=0.0)
    yield written
    await written.writer.close()


# -------------------- commit --------------------


async def test_a_commit_that_fails_raises_and_leaves_nothing_of_itself(
    patient: WrittenDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    patient.change(FULL.replace("ON items", "ON items WHEN NEW.key = 'b'"))
    with pytest.raises(WriteFailed, match=r"test\.db cannot be written: disk is full") as failed:
        await patient.writer.commit([insert("a"), insert("b")])
    assert failed.value.why == patient.writer.trouble == "disk is full"
    assert patient.items() == {}
    await patient.writer.commit([insert("a")])
    assert patient.writer.trouble == ""
    assert len(caplog.records) == 1


async def test_commits_that_wait_together_are_one_transaction_and_each_fails_alone(patient: WrittenDatabase) -> None:
    patient.change(FULL.replace("ON items", "ON items WHEN NEW.key = 'bad'"))
    release = patient.hold()
    await asyncio.to_thread(patient.is_held.wait)
    begun: list[str] = []
    patient.connection.set_trace_callback(lambda sql: begun.append(sql.split()[0]))
    names = ["first", "bad", "last"]
    commits = [asyncio.ensure_future(patient.writer.commit([insert(name)])) for name in names]
    await asyncio.sleep(0)
    release()
    ended = await asyncio.gather(*commits, return_exceptions=True)
    patient.connection.set_trace_callback(None)
    assert [type(each) for each in ended] == [type(None), WriteFailed, type(None)]
    assert patient.items().keys() == {"first", "last"}
    assert [word for word in begun if word in {"BEGIN", "COMMIT"}] == ["BEGIN", "COMMIT"]


async def test_a_put_that_comes_after_a_commit_is_executed_after_it(patient: WrittenDatabase) -> None:
    release = patient.hold()
    await asyncio.to_thread(patient.is_held.wait)
    commit = asyncio.ensure_future(patient.writer.commit([insert("a")]))
    await asyncio.sleep(0)
    patient.writer.put("a", ("DELETE FROM items WHERE key = 'a'", ()))
    release()
    await commit
    assert patient.items() == {}


async def test_puts_gather_after_a_write_until_a_caller_waits(
    patient: WrittenDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_writer, "_GATHER_S", 3_600.0)
    await patient.writer.commit([insert("first")])
    begun: list[str] = []
    patient.connection.set_trace_callback(lambda sql: begun.append(sql.split()[0]))
    for number in range(10):
        patient.writer.put(number, insert(f"put {number}"))
        await asyncio.sleep(0)
    await patient.writer.commit([insert("last")])
    patient.connection.set_trace_callback(None)
    assert (begun.count("BEGIN"), len(patient.items())) == (1, 12)


async def test_a_writer_that_closes_ends_the_gathering(
    patient: WrittenDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_writer, "_GATHER_S", 3_600.0)
    await patient.writer.commit([insert("first")])
    patient.writer.put("a", insert("a"))
    await patient.writer.close()
    assert patient.items().keys() == {"first", "a"}


async def test_a_caller_that_is_cancelled_does_not_undo_its_write(patient: WrittenDatabase) -> None:
    release = patient.hold()
    task = asyncio.ensure_future(patient.writer.commit([insert("a")]))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    release()
    await patient.writer.close()
    assert patient.items() == {"a": 0}


async def test_a_value_that_no_database_can_hold_is_a_bug_with_its_traceback(
    patient: WrittenDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(WriteFailed, match="surrogates not allowed"):
        await patient.writer.commit([insert("\ud800")])
    assert [record.exc_info is not None for record in caplog.records] == [True]


async def test_two_writers_to_one_file_wait_for_each_other(patient: WrittenDatabase, tmp_path: Path) -> None:
    other = WrittenDatabase(tmp_path, retry_s=3_600.0)
    one_more = ("INSERT INTO items SELECT count(*), 0 FROM items", ())
    await asyncio.gather(*(written.writer.commit([one_more]) for _ in range(20) for written in (patient, other)))
    await other.writer.close()
    assert len(patient.items()) == 40


# -------------------- put --------------------


async def test_a_put_is_on_the_disk_after_the_close(patient: WrittenDatabase) -> None:
    for number in range(2_000):
        patient.writer.put(number % 1_000, insert(str(number % 1_000), number))
    await patient.writer.close()
    assert patient.items() == {str(number): number + 1_000 for number in range(1_000)}


async def test_a_put_that_fails_is_retried_and_the_newest_state_of_a_key_wins(
    written: WrittenDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    written.change(FULL)
    written.writer.put("a", insert("a", 1))
    written.writer.put("b", insert("b", 1))
    await until(lambda: written.writer.trouble)
    written.writer.put("a", insert("a", 2))
    written.change("DROP TRIGGER full")
    await until(lambda: not written.writer.trouble)
    await written.writer.commit([])  # the older state may just have been written
    assert written.items() == {"a": 2, "b": 1}
    assert caplog.messages == [
        f"cannot write {written.path}; it is tried again: disk is full",
        f"{written.path} is written again, and nothing is missing in it",
    ]


async def test_a_put_of_a_bug_does_not_keep_the_others_from_the_disk(written: WrittenDatabase) -> None:
    release = written.hold()
    written.writer.put("bug", insert("\ud800"))
    written.writer.put("a", insert("a"))
    release()
    await asyncio.gather(written.busy, return_exceptions=True)
    await until(lambda: written.items() == {"a": 0})
    written.writer.put("bug", insert("b"))
    await until(lambda: written.items() == {"a": 0, "b": 0})


async def test_a_commit_retries_the_puts_that_wait_and_comes_after_them(patient: WrittenDatabase) -> None:
    patient.change(FULL)
    patient.writer.put("a", insert("a", 1))
    await until(lambda: patient.writer.trouble)
    patient.change("DROP TRIGGER full")
    await patient.writer.commit([("UPDATE items SET value = 9 WHERE key = 'a'", ())])
    assert patient.items() == {"a": 9}
    assert patient.writer.trouble == ""


@pytest.mark.parametrize("works", [True, False])
async def test_a_put_is_retried_until_a_commit_that_replaces_it_works(patient: WrittenDatabase, *, works: bool) -> None:
    patient.change(FULL.replace("ON items", f"ON items WHEN NEW.value < {2 if works else 3}"))
    patient.writer.put("a", insert("a", 1))
    await until(lambda: patient.writer.trouble)
    with nullcontext() if works else pytest.raises(WriteFailed):
        await patient.writer.commit([insert("a", 2)], replaces=["a"])
    patient.change("DROP TRIGGER full")
    await patient.writer.commit([])
    assert patient.items() == {"a": 1 + works}
    assert patient.writer.trouble == ""


async def test_a_put_that_still_fails_at_the_close_is_given_up(patient: WrittenDatabase) -> None:
    patient.change(FULL)
    patient.writer.put("a", insert("a"))
    await patient.writer.close()
    assert patient.writer.trouble == "disk is full"
    assert [file.name for file in patient.path.parent.iterdir()] == ["test.db"], "the file is closed"


# -------------------- persist --------------------


async def test_a_write_that_persists_returns_once_the_disk_has_it(written: WrittenDatabase) -> None:
    written.change(FULL)
    task = asyncio.create_task(written.writer.persist([insert("a")]))
    await until(lambda: written.writer.trouble)
    written.change("DROP TRIGGER full")
    assert await task
    assert written.items() == {"a": 0}


async def test_a_write_that_persists_gives_up_when_the_writer_is_closed(patient: WrittenDatabase) -> None:
    patient.change(FULL)
    task = asyncio.create_task(patient.writer.persist([insert("a")]))
    await until(lambda: patient.writer.trouble)
    patient.writer.end_retries()
    assert await task is False
    await patient.writer.close()
    assert await patient.writer.persist([insert("a")]) is False
    with pytest.raises(WriteFailed, match="is stopping"):
        await patient.writer.commit([insert("a")])


async def test_a_file_that_could_not_be_written_at_the_start_is_opened_with_the_first_write(tmp_path: Path) -> None:
    path, opened = tmp_path / "test.db", asyncio.Event()
    can_open = threading.Event()

    def connect() -> sqlite3.Connection:
        if not can_open.is_set():
            raise OSError("read-only")
        return open_database(path, SCHEMA, check=lambda _: None)

    writer = DatabaseWriter(path, LateConnection("read-only", connect, opened.set), retry_s=0.0)
    task = asyncio.create_task(writer.persist([insert("a")]))
    await asyncio.sleep(0)
    assert not opened.is_set()
    can_open.set()
    assert await task
    assert (opened.is_set(), writer.trouble) == (True, "")
    await writer.close()
