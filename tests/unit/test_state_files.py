"""Files of a state directory, and who may enter it: replaced as a whole, and read in older versions."""

import json
import logging
import os
import stat
from pathlib import Path

import pytest

from common.errors import SettingsError
from common.store.files import replace_file
from common.store.state_file import make_state_directory, read_state, write_state


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("umask", [0, 0o022, 0o077])
def test_only_its_owner_may_enter_it_and_nobody_else_may_replace_its_parents(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        make_state_directory(tmp_path / "a/b/state")
    finally:
        os.umask(before)
    assert mode(tmp_path / "a/b/state") == 0o700
    assert not (mode(tmp_path / "a") | mode(tmp_path / "a/b")) & 0o022


def test_a_directory_that_was_open_is_closed_and_its_content_stays(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.mkdir()
    path.chmod(0o2775)
    (path / "file").touch()
    make_state_directory(path)
    assert mode(path) == 0o2700
    assert (path / "file").exists()


def test_a_directory_that_all_users_share_stays_and_a_warning_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "shared"
    path.mkdir()
    path.chmod(0o1777)
    make_state_directory(path)
    assert mode(path) == 0o1777
    assert f"{path} has the mode 1777: other users may read the state in it" in caplog.text


@pytest.mark.parametrize(("given", "level"), [(0o755, "INFO"), (0o2775, "INFO"), (0o777, "WARNING")])
def test_a_directory_of_another_user_stays_and_a_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, given: int, level: str
) -> None:
    path_chmod = Path.chmod

    def refuse(self: Path, mode: int) -> None:
        raise PermissionError(1, "Operation not permitted", str(self), mode)

    monkeypatch.setattr(Path, "chmod", refuse)
    path = tmp_path / "state"
    path.mkdir()
    path_chmod(path, given)
    with caplog.at_level(logging.INFO):
        make_state_directory(path)
    (line,) = caplog.records
    assert line.levelname == level
    assert "other users may read the state in it" in line.message


def test_a_parent_that_is_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="Not a directory"):
        make_state_directory(tmp_path / "file/state")


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.mark.parametrize("durable", [True, False])
def test_a_file_is_made_and_replaced(tmp_path: Path, durable: bool) -> None:
    for content in (b"first", b"second"):
        replace_file(tmp_path / "a", content, durable=durable)
        assert (tmp_path / "a").read_bytes() == content
    assert names(tmp_path) == ["a"]


def test_its_mode_is_the_one_that_was_asked_for_else_the_umasks(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        replace_file(tmp_path / "asked", b"", durable=False, mode=0o644)
        replace_file(tmp_path / "default", b"", durable=False)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "asked").stat().st_mode) == 0o644
    assert stat.S_IMODE((tmp_path / "default").stat().st_mode) == 0o600


@pytest.mark.parametrize("broken", ["os.fsync", "os.rename", "os.fdopen"])
def test_a_failure_leaves_the_old_content_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    def fail(*_given: object, **_named: object) -> None:
        raise OSError(28, "No space left on device")

    replace_file(tmp_path / "a", b"old", durable=True)
    with monkeypatch.context() as full:
        full.setattr(broken, fail)
        with pytest.raises(OSError, match="No space left"):
            replace_file(tmp_path / "a", b"new", durable=True)
    assert (tmp_path / "a").read_bytes() == b"old"
    assert names(tmp_path) == ["a"]


def test_what_a_crash_left_of_a_write_is_replaced_too_and_a_link_there_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(b"theirs")
    (tmp_path / "a.new").symlink_to(tmp_path / "elsewhere")
    replace_file(tmp_path / "a", b"ours", durable=True)
    assert (tmp_path / "elsewhere").read_bytes() == b"theirs"
    assert names(tmp_path) == ["a", "elsewhere"]


def test_a_durable_file_and_its_directory_are_synced_before_it_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(
        "os.fsync", lambda file: synced.append("dir" if stat.S_ISDIR(os.fstat(file).st_mode) else "file")
    )
    replace_file(tmp_path / "a", b"", durable=False, reached=lambda: synced.append("written"))
    replace_file(tmp_path / "a", b"", durable=True, reached=lambda: synced.append("written"))
    assert synced == ["written", "file", "written", "dir"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.json"


def test_what_was_written_is_read_with_its_version(path: Path) -> None:
    write_state(path, {"a": 1})
    assert json.loads(path.read_text()) == {"a": 1, "version": 1}
    assert read_state(path, "hub")["a"] == 1


def test_a_newer_file_is_refused_and_left_as_it_is(path: Path) -> None:
    path.write_text('{"version": 2, "names": []}')
    before = path.read_bytes(), path.stat().st_mtime_ns
    with pytest.raises(SettingsError, match=r"state\.json: was written by a newer hub \(schema 2, this one knows 1\)"):
        read_state(path, "hub")
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before


@pytest.mark.parametrize(
    "content", ["", "{", "7", "[]", "{}", '{"version": 0}', '{"version": "1"}', '{"version": true}', "[" * 100_000],
    ids=lambda content: content[:20],
)  # fmt: skip
def test_another_content_is_a_value_error(path: Path, content: str) -> None:
    path.write_text(content)
    with pytest.raises(ValueError, match=r"."):
        read_state(path, "hub")
