"""What an agent knew while it mounted volumes, when a kubelet takes over."""

import errno
import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from common.errors import SettingsError
from common.store.database import lock
from edge.stores.former_state import put_aside

STATE = ("edge.db", "edge.db-wal", "edge.db-shm", "volumes.db", "volumes.db-wal", "drivers.json")
OTHERS = ("edge.key", "home.json", "edge-2026-11-21T09:12:03Z.corrupt")


def write(directory: Path, names: Iterable[str], text: str = "") -> None:
    for name in names:
        (directory / name).write_text(text or name)


def read(directory: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in directory.iterdir() if file.suffix != ".lock"}


def test_both_databases_with_their_journals_and_the_drivers_are_moved_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, (*STATE, *OTHERS))
    assert put_aside(tmp_path, now=0.0) == ""
    assert read(tmp_path) == {name: name for name in OTHERS} | {
        "edge.db.own-1970-01-01T00:00:00Z": "edge.db",
        "edge.db.own-1970-01-01T00:00:00Z-wal": "edge.db-wal",
        "edge.db.own-1970-01-01T00:00:00Z-shm": "edge.db-shm",
        "volumes.db.own-1970-01-01T00:00:00Z": "volumes.db",
        "volumes.db.own-1970-01-01T00:00:00Z-wal": "volumes.db-wal",
        "drivers.json.own-1970-01-01T00:00:00Z": "drivers.json",
    }
    assert len(caplog.messages) == len(STATE)
    assert f"{tmp_path}/volumes.db is of the time before the kubelet's; it is moved to {tmp_path}/volumes.db.own-" in (
        "\n".join(caplog.messages)
    )


def test_of_each_file_the_newest_is_kept(tmp_path: Path) -> None:
    write(tmp_path, STATE, "old")
    put_aside(tmp_path, now=0.0)
    assert put_aside(tmp_path, now=1.0) == ""
    assert set(read(tmp_path).values()) == {"old"}, "there was nothing newer"
    write(tmp_path, STATE[:1], "new")
    assert put_aside(tmp_path, now=1.0) == ""
    assert read(tmp_path) == {
        "edge.db.own-1970-01-01T00:00:01Z": "new",
        "volumes.db.own-1970-01-01T00:00:00Z": "old",
        "volumes.db.own-1970-01-01T00:00:00Z-wal": "old",
        "drivers.json.own-1970-01-01T00:00:00Z": "old",
    }


def test_a_set_of_the_same_second_is_replaced(tmp_path: Path) -> None:
    for text in ("old", "new"):
        write(tmp_path, STATE, text)
        assert put_aside(tmp_path, now=0.0) == ""
    assert set(read(tmp_path).values()) == {"new"}


def test_where_nothing_was_mounted_nothing_is_made(tmp_path: Path) -> None:
    assert put_aside(tmp_path / "missing", now=0.0) == ""
    assert not (tmp_path / "missing").exists()
    assert put_aside(tmp_path, now=0.0) == ""
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("file", ["edge.lock", "volumes.lock"])
def test_nothing_is_taken_from_under_an_agent_that_uses_it(tmp_path: Path, file: str) -> None:
    write(tmp_path, STATE)
    held = lock(tmp_path / file)
    with pytest.raises(SettingsError, match=r"--state-dir=.*: another edge agent is using it"):
        put_aside(tmp_path, now=0.0)
    os.close(held)
    assert read(tmp_path) == {name: name for name in STATE}
    assert put_aside(tmp_path, now=0.0) == ""


def test_what_cannot_be_moved_is_said_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, STATE)

    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "rename", refuse)
    assert put_aside(tmp_path, now=0.0) == (
        f"edge.db, volumes.db and drivers.json in {tmp_path} are of the time before the kubelet's and cannot be put "
        f"aside (Read-only file system): remove them before an agent mounts volumes here again"
    )
