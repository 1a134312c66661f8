"""The volume states on disk: what is written comes back, and what cannot be used ends in words or is moved aside."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
import threading
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from common.errors import SettingsError
from edge.manager.states import SCHEMA, Device, Publication, State, VolumeStates
from edge.volume_errors import NotReady

if TYPE_CHECKING:
    from pathlib import Path

    from edge.manager.states import Row

DEVICE = Device(
    driver="d",
    handle="h",
    name="pv",
    block=True,
    state=State.DONE,
    attached=True,
    mount_point=True,
    arguments="abc",
    size_bytes=1 << 40,
    boot="b",
    since=12.5,
    error="x",
)
PUBLICATION = Publication(
    driver="d",
    handle="h",
    name="pv",
    pod_uid="u",
    pod_namespace="ns",
    pod_name="web",
    volume_name="data",
    ephemeral=True,
)


async def keep(directory: Path, *rows: Row, durable: bool = False) -> None:
    states = VolumeStates(directory, durable=durable)
    for row in rows:
        await states.put(row)
    await states.close()


async def kept(directory: Path) -> list[Row]:
    states = VolumeStates(directory)
    rows = states.rows()
    await states.close()
    return rows


@pytest.mark.parametrize("durable", [False, True])
async def test_what_was_written_is_there_after_a_restart(tmp_path: Path, durable: bool) -> None:
    await keep(tmp_path, DEVICE, PUBLICATION, durable=durable)
    assert await kept(tmp_path) == [DEVICE, PUBLICATION]


async def test_a_row_takes_its_predecessors_place(tmp_path: Path) -> None:
    await keep(tmp_path, DEVICE, replace(DEVICE, state=State.UNCERTAIN), PUBLICATION, replace(PUBLICATION, pod_uid="v"))
    assert await kept(tmp_path) == [
        replace(DEVICE, state=State.UNCERTAIN),
        PUBLICATION,
        replace(PUBLICATION, pod_uid="v"),
    ]


async def test_a_row_that_was_dropped_is_gone(tmp_path: Path) -> None:
    states = VolumeStates(tmp_path)
    await states.put(DEVICE)
    await states.put(PUBLICATION)
    await states.drop(replace(PUBLICATION, state=State.DONE, error="whatever"))
    await states.drop(PUBLICATION)
    await states.close()
    assert await kept(tmp_path) == [DEVICE]


async def test_a_row_is_on_disk_when_its_writer_goes_on(tmp_path: Path) -> None:
    states = VolumeStates(tmp_path)
    await states.put(DEVICE)
    with closing(sqlite3.connect(tmp_path / "volumes.db")) as database:
        assert database.execute("SELECT count(*) FROM devices").fetchone() == (1,)
    await states.close()


async def test_many_writers_at_once_all_get_their_rows(tmp_path: Path) -> None:
    states = VolumeStates(tmp_path)
    await asyncio.gather(*(states.put(replace(DEVICE, handle=str(n))) for n in range(300)))
    await states.close()
    assert len(await kept(tmp_path)) == 300


async def test_a_writer_that_is_cancelled_loses_nothing(tmp_path: Path) -> None:
    states = VolumeStates(tmp_path)
    task = asyncio.create_task(states.put(DEVICE))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await states.close()
    assert await kept(tmp_path) == [DEVICE]


async def test_an_error_of_megabytes_is_cut(tmp_path: Path) -> None:
    await keep(tmp_path, replace(DEVICE, error="x" * 3_000_000))
    (row,) = await kept(tmp_path)
    assert len(row.error) == 1024


async def test_a_write_that_fails_says_so_and_a_later_one_works(tmp_path: Path) -> None:
    states = VolumeStates(tmp_path)
    with closing(sqlite3.connect(tmp_path / "volumes.db")) as other:
        other.execute("DROP TABLE devices")
        other.commit()
        with pytest.raises(NotReady, match=r"cannot be written to .*volumes\.db"):
            await states.put(DEVICE)
        assert states.trouble
        await states.put(PUBLICATION)
    assert states.trouble == ""
    await states.close()


@pytest.mark.parametrize("row", [DEVICE, PUBLICATION])
async def test_a_row_that_no_database_can_hold_fails_alone(
    tmp_path: Path, row: Row, caplog: pytest.LogCaptureFixture
) -> None:
    states = VolumeStates(tmp_path)
    all_wait = threading.Event()
    holding = asyncio.ensure_future(states._writer.transact(lambda _: all_wait.wait()))  # they become one transaction
    rows = [replace(row, handle=handle) for handle in ("first", "\ud800", "third")]
    puts = [asyncio.ensure_future(states.put(row)) for row in rows]
    await asyncio.sleep(0)
    all_wait.set()
    told = await asyncio.gather(*puts, return_exceptions=True)
    assert await holding
    await states.close()
    assert [type(each) for each in told] == [type(None), NotReady, type(None)]
    assert await kept(tmp_path) == [rows[0], rows[2]]
    assert len([record for record in caplog.records if record.exc_info]) == 1


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    (tmp_path / "volumes.db").write_bytes(b"no database" * 1000)
    return tmp_path


async def test_a_damaged_file_is_moved_aside(damaged: Path) -> None:
    assert await kept(damaged) == []
    assert any(name.endswith(".corrupt") for name in os.listdir(damaged))  # noqa: PTH208  # async code uses no Path


async def test_a_newer_agents_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    await keep(tmp_path, DEVICE)
    with closing(sqlite3.connect(tmp_path / "volumes.db")) as database:
        database.execute(f"PRAGMA user_version={SCHEMA.version + 1}")
    with pytest.raises(SettingsError, match="newer edge agent"):
        VolumeStates(tmp_path)


async def test_two_agents_cannot_use_one_directory(tmp_path: Path) -> None:
    states = VolumeStates(tmp_path)
    with pytest.raises(SettingsError, match="another edge agent"):
        VolumeStates(tmp_path)
    await states.close()


async def test_a_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="File exists"):
        VolumeStates(tmp_path / "file")


async def test_a_state_that_nobody_knows_is_uncertain(tmp_path: Path) -> None:
    await keep(tmp_path, DEVICE)
    with closing(sqlite3.connect(tmp_path / "volumes.db")) as database:
        database.execute("UPDATE devices SET state = 'marvellous'")
        database.commit()
    (row,) = await kept(tmp_path)
    assert row.state is State.UNCERTAIN


async def test_nobody_else_may_read_the_files(tmp_path: Path) -> None:
    states = VolumeStates(tmp_path)
    await states.put(DEVICE)
    modes = {entry.name: stat.S_IMODE(entry.stat().st_mode) for entry in os.scandir(tmp_path)}
    await states.close()
    assert set(modes.values()) == {0o600}, modes
