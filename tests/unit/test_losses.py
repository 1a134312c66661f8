"""What the hub has lost, on disk: it stands until somebody says otherwise, on a full disk and through damage, too."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from cloud.losses import Losses
from common.errors import NewerState

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "hub.losses"


@pytest.fixture(autouse=True)
def at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything happens at one time."""
    monkeypatch.setattr("cloud.losses.time.time", lambda: 1_795_252_323.9)


def line(what: str) -> str:
    return f"2026-11-21T09:12:03Z {what}"


def created(path: Path) -> Losses:
    losses = Losses(path)
    losses.create()
    return losses


def test_the_losses_of_a_newer_hub_are_refused_and_left_as_they_are(path: Path) -> None:
    content = b"version 2\nsomething else".ljust(4_096, b"\n")
    path.write_bytes(content)
    with pytest.raises(NewerState, match=r"hub\.losses: was written by a newer hub \(schema 2"):
        Losses(path)
    assert path.read_bytes() == content


def test_nothing_is_lost_at_first(path: Path) -> None:
    losses = created(path)
    assert (losses.standing, losses.file_found) == ((), False)
    assert (Losses(path).standing, Losses(path).file_found) == ((), True)


def test_what_was_lost_stands_in_order_and_with_the_first_time_until_it_is_cleared(path: Path) -> None:
    losses = created(path)
    assert losses.add("one was lost")
    assert losses.add("another was lost")
    assert not losses.add("one was lost")
    expected = (line("one was lost"), line("another was lost"))
    assert losses.standing == Losses(path).standing == expected
    assert Losses(path).clear() == expected
    assert Losses(path).standing == ()


def test_what_is_at_risk_is_lost_for_the_next_hub_alone(path: Path) -> None:
    losses = created(path)
    losses.put_at_risk("writes fail")
    losses.put_at_risk("writes fail")
    assert losses.standing == ()
    assert Losses(path).standing == (line("writes fail"),)
    losses.clear()  # what is in memory can still be lost
    assert Losses(path).standing == (line("writes fail"),)
    losses.put_at_risk("")
    assert Losses(path).standing == ()


def test_the_list_is_bounded_and_says_that_it_is_not_all(path: Path) -> None:
    losses = created(path)
    for number in range(1_000):
        losses.add(f"a report of edge node n{number} {'ü' * 400}")
    losses.put_at_risk("writes fail")
    assert losses.standing[-1] == line("more was lost than is listed here")
    assert Losses(path).standing == (*losses.standing, line("writes fail"))
    assert path.stat().st_size == 4_096


def test_a_long_loss_is_cut_and_known_again(path: Path) -> None:
    losses = created(path)
    long = f"\x1b{'x' * 5_000}"
    assert losses.add(long)
    assert not losses.add(long)
    assert len(losses.standing[0]) < 500
    assert losses.standing[0].isprintable()


@pytest.mark.parametrize("content", [bytes(4_096), b"\xff" * 10, b"2026 x\x1b[2J"], ids=["zeros", "binary", "escape"])
def test_a_list_that_is_damaged_itself_is_a_loss(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    losses = created(path)
    assert losses.standing == Losses(path).standing == (line(f"{path} was damaged"),)


def test_the_file_is_overwritten_in_place_so_that_a_full_disk_can_hold_it(path: Path) -> None:
    losses = created(path)
    before = path.stat()
    losses.add("one was lost")
    after = path.stat()
    assert (after.st_ino, after.st_size, after.st_blocks) == (before.st_ino, before.st_size, before.st_blocks)


def test_where_the_list_cannot_be_written_the_loss_stands_in_memory_and_is_not_cleared(
    path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = created(path)

    def fail(*_: object) -> int:
        raise OSError("disk on fire")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", fail)
        losses.add("one was lost")
        assert f"cannot write {path}; a restarted hub will not know of the loss: disk on fire" in caplog.messages
        with pytest.raises(OSError, match="on fire"):
            losses.clear()
        assert losses.standing == (line("one was lost"),)
    losses.clear()
    assert losses.standing == ()
