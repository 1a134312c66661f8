"""A state directory, and who may enter it."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

import pytest

from common.state_directory import make_state_directory


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
