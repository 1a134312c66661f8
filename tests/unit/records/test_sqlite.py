"""The records in `state.db`: what every implementation does, and the file."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from cloud.records.records import Change, RecordKind
from cloud.records.sqlite import SqliteRecords
from common.errors import SettingsError
from common.store.database_writer import WriteFailed
from tests.kit.records_suite import RecordsSuite, Reopen, found

A, B = (Change(RecordKind.CLAIM, ("d", name), {"node": "n1"}) for name in "ab")


class TestSqlite(RecordsSuite):
    @pytest.fixture
    async def reopen(self, tmp_path: Path) -> AsyncIterator[Reopen]:
        opened: list[SqliteRecords] = []

        async def again() -> SqliteRecords:
            if opened:
                await opened.pop().close()
            opened.append(SqliteRecords(tmp_path / "state"))
            return opened[0]

        yield again
        await opened[0].close()


def database(directory: Path) -> closing[sqlite3.Connection]:
    return closing(sqlite3.connect(directory / "state.db", isolation_level=None))


async def test_only_the_owner_may_read_the_file_and_its_journal(tmp_path: Path) -> None:
    records = SqliteRecords(tmp_path)
    await records.write([A])
    modes = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}  # noqa: ASYNC240
    await records.close()
    assert modes == dict.fromkeys(("hub.lock", "state.db", "state.db-shm", "state.db-wal"), 0o600)


@pytest.mark.parametrize("damage", ["no database", "no JSON"])
async def test_a_damaged_file_stops_the_hub_says_what_to_do_and_keeps_its_name(tmp_path: Path, damage: str) -> None:
    await SqliteRecords(tmp_path).close()
    if damage == "no database":
        (tmp_path / "state.db").write_bytes(b"no database" * 1_000)
    else:
        with database(tmp_path) as it:
            it.execute("INSERT INTO records VALUES ('claim', '[', '{}')")
    before = (tmp_path / "state.db").read_bytes()
    with pytest.raises(SettingsError, match=r"is damaged.*put back a copy"):
        SqliteRecords(tmp_path)
    assert (tmp_path / "state.db").read_bytes() == before


async def test_a_damaged_file_of_a_relative_state_directory_blames_that_flag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("state").mkdir()  # noqa: ASYNC240
    Path("state/state.db").write_bytes(b"no database" * 1_000)  # noqa: ASYNC240
    with pytest.raises(SettingsError, match=r"^--state-dir=state/state.db: is damaged"):
        SqliteRecords(Path("state"))


async def test_a_file_of_a_newer_hub_stops_the_hub(tmp_path: Path) -> None:
    await SqliteRecords(tmp_path).close()
    with database(tmp_path) as it:
        it.execute("PRAGMA user_version=9")
    with pytest.raises(SettingsError, match="schema 9"):
        SqliteRecords(tmp_path)


async def test_nothing_of_a_failed_write_is_there_and_a_put_is_written_once_that_works(tmp_path: Path) -> None:
    records = SqliteRecords(tmp_path, retry_s=0.01)
    with database(tmp_path) as it:
        it.execute(
            "CREATE TRIGGER full BEFORE INSERT ON records WHEN NEW.key LIKE '%b%' BEGIN SELECT raise(FAIL, 'full'); END"
        )
        records.put(B)
        with pytest.raises(WriteFailed, match=r"state.db cannot be written: full"):
            await records.write([A, B])
        assert records.trouble == "full"
        it.execute("DROP TRIGGER full")
    await records.write([Change(RecordKind.DENIAL, ("n1",), {})])
    await records.close()
    records = SqliteRecords(tmp_path)
    assert found(records) == {("d", "b"): {"node": "n1"}}
    await records.close()
