"""The volume states on disk: what is written comes back, and what cannot be used ends in words or is moved aside."""

import os
import sqlite3
import stat
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from common.errors import SettingsError
from edge.volume_errors import NotReady
from edge.wanted.states import Device, Publication, Row, State, VolumeStates

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
async def test_what_was_written_last_of_each_mount_is_there_after_a_restart(tmp_path: Path, durable: bool) -> None:
    other = replace(PUBLICATION, pod_uid="v")
    await keep(tmp_path, replace(DEVICE, state=State.UNCERTAIN), DEVICE, PUBLICATION, other, durable=durable)
    assert await kept(tmp_path) == [DEVICE, PUBLICATION, other]


async def test_a_row_that_was_dropped_is_gone(tmp_path: Path) -> None:
    states = VolumeStates(tmp_path)
    await states.put(DEVICE)
    await states.put(PUBLICATION)
    await states.drop(replace(PUBLICATION, state=State.DONE, error="whatever"))
    await states.drop(PUBLICATION)
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


async def test_a_damaged_file_is_moved_aside(tmp_path: Path) -> None:
    (tmp_path / "volumes.db").write_bytes(b"no database" * 1000)
    assert await kept(tmp_path) == []
    assert any(name.endswith(".corrupt") for name in os.listdir(tmp_path))  # noqa: PTH208  # async code uses no Path


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


async def test_two_agents_cannot_use_one_directory(tmp_path: Path) -> None:
    states = VolumeStates(tmp_path)
    with pytest.raises(SettingsError, match="another edge agent"):
        VolumeStates(tmp_path)
    await states.close()
