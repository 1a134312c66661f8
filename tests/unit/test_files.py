"""A file that is replaced as a whole: its readers never see a part of it, and a failure leaves the old content."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

from common.files import replace_file

if TYPE_CHECKING:
    from pathlib import Path


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
