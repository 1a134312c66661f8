"""The audit log: it has every event in order, keeps within its size, and never delays its callers."""

from __future__ import annotations

import errno
import json
import logging
import os
import stat
from typing import TYPE_CHECKING, Any

import pytest

from cloud.trust import audit_log
from cloud.trust.audit_file import PARTS, AuditFile, paths
from cloud.trust.audit_log import AuditLog, Event

if TYPE_CHECKING:
    from pathlib import Path


class Clock:
    """A time that the test moves."""

    def __init__(self) -> None:
        self.at = 1_795_252_323.25

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def log(tmp_path: Path, clock: Clock) -> AuditLog:
    return AuditLog(tmp_path, largest_bytes=PARTS * 4_096, now=clock, monotonic=clock)


def parts(state_dir: Path) -> list[Path]:
    """The files that exist, the oldest first."""
    return [path for path in reversed(list(paths(state_dir))) if path.exists()]


def lines(state_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for part in parts(state_dir) for line in part.read_bytes().splitlines()]


def test_a_line_says_when_what_who_from_where_and_its_details(log: AuditLog, tmp_path: Path) -> None:
    log.add(Event.JOIN, who="n1", address="192.0.2.1:999", generation=1, drivers=["a.example", "b.example"])
    log.close()
    assert lines(tmp_path) == [
        {
            "ts": "2026-11-21T09:12:03.250Z",
            "event": "join",
            "who": "n1",
            "address": "192.0.2.1:999",
            "generation": 1,
            "drivers": ["a.example", "b.example"],
        }
    ]


def test_the_file_is_for_the_hub_alone_whatever_the_umask(log: AuditLog, tmp_path: Path) -> None:
    log.add(Event.START, who="hub")
    log.close()
    assert stat.S_IMODE((tmp_path / "audit.log").stat().st_mode) == 0o600


def test_a_peers_control_characters_reach_no_terminal(log: AuditLog, tmp_path: Path) -> None:
    log.add(Event.REFUSAL, who='n1"\n\x1b[2J\x9b\u2028', why="x")
    log.close()
    (line,) = (tmp_path / "audit.log").read_bytes().splitlines()
    assert line.isascii()
    assert b"\x1b" not in line
    assert json.loads(line)["who"] == 'n1"\n\x1b[2J\x9b\u2028'


def test_a_peers_long_texts_are_cut(log: AuditLog, tmp_path: Path) -> None:
    log.add(Event.REFUSAL, who="n" * 10_000, names=["d" * 10_000] * 1_000)
    log.close()
    (line,) = lines(tmp_path)
    assert (len(line["who"]), len(line["names"]), len(line["names"][0])) == (500, 50, 500)


def test_all_files_stay_within_the_size_and_the_oldest_lines_go_first(log: AuditLog, tmp_path: Path) -> None:
    with_room = PARTS * 4_096
    for number in range(2_000):
        log.add(Event.ORDER, who="root", number=number)
    log.close()
    found = [line["number"] for line in lines(tmp_path)]
    assert sum(part.stat().st_size for part in parts(tmp_path)) <= max(with_room, 500 * 100 * PARTS)
    assert found == list(range(found[0], 2_000))


def test_a_file_that_is_full_gets_a_number_and_at_most_nine_are_kept(tmp_path: Path) -> None:
    file = AuditFile(tmp_path, largest_bytes=PARTS * 100)
    for number in range(25):
        file.append(b"%059d\n" % number)  # two do not fit into one
    assert [part.name for part in parts(tmp_path)] == [*(f"audit.log.{n}" for n in range(9, 0, -1)), "audit.log"]
    assert [int(part.read_bytes()) for part in parts(tmp_path)] == list(range(15, 25))


def test_without_a_descriptor_for_the_next_file_no_file_of_another_thread_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = AuditFile(tmp_path, largest_bytes=PARTS * 100)
    file.append(b"%099d\n" % 1)
    of_others: list[int] = []
    times = iter(range(2))

    def last_one(*args: Any) -> int:
        """The last descriptor is taken by another thread right before the second call."""
        if next(times) == 0:
            return os.open(*args)
        of_others.append(os.dup(0))
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(
            AuditFile, "_open", lambda self: last_one(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        )
        with pytest.raises(OSError, match="Too many open files"):
            file.append(b"%099d\n" % 2)
    os.close(*of_others)  # raises EBADF if the log has closed it
    file.append(b"%099d\n" % 2)
    assert [int(part.read_bytes()) for part in parts(tmp_path)] == [1, 2]


def test_a_peer_that_repeats_itself_leaves_the_other_lines_alone(log: AuditLog, tmp_path: Path, clock: Clock) -> None:
    for _ in range(5_000):
        log.add(Event.ADMISSION, who="n1")
    log.add(Event.ADMISSION, who="n2")
    clock.at += 60
    log.add(Event.ADMISSION, who="n1")
    log.add(Event.ADMISSION, who="n1")
    log.close()
    found = lines(tmp_path)
    assert [line["who"] for line in found] == ["n1"] * 20 + ["n2", "n1", "n1"]
    assert found[21]["left_out"] == 4_980
    assert found[22] == {"ts": found[22]["ts"], "event": "omission", "who": "n1", "of": "admission", "lines": 1}


def test_no_order_of_an_operator_is_left_out(log: AuditLog, tmp_path: Path) -> None:
    for _ in range(100):
        log.add(Event.ORDER, who="root")
    log.close()
    assert len(lines(tmp_path)) == 100


def test_peers_with_invented_names_fill_no_memory_and_every_line_left_out_is_counted(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_log, "_MOST_PEERS", 2)
    log = AuditLog(tmp_path, largest_bytes=2**20, now=clock, monotonic=clock)
    for _ in range(21):
        log.add(Event.REFUSAL, who="n1")
    log.add(Event.REFUSAL, who="n2")
    log.add(Event.REFUSAL, who="n3")
    log.close()
    found = [(line["event"], line["who"]) for line in lines(tmp_path)]
    assert found[20:] == [("refusal", "n2"), ("omission", "n1"), ("refusal", "n3")]


def test_a_line_that_a_killed_hub_cut_off_does_not_spoil_the_next(log: AuditLog, tmp_path: Path) -> None:
    (tmp_path / "audit.log").write_bytes(b'{"ts":"2026')
    log.add(Event.START, who="hub")
    log.close()
    torn, whole = (tmp_path / "audit.log").read_bytes().splitlines()
    assert (torn, json.loads(whole)["event"]) == (b'{"ts":"2026', "start")


def test_a_full_disk_leaves_no_half_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = AuditFile(tmp_path, largest_bytes=2**20)
    file.append(b"one\n")
    really = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: really(descriptor, data[:2]))
    with pytest.raises(OSError, match="no room"):
        file.append(b"two\n")
    assert (tmp_path / "audit.log").read_bytes() == b"one\n"


def test_a_link_in_place_of_the_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "audit.log").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError) as refused:  # noqa: PT011  # the number says which
        AuditFile(tmp_path, largest_bytes=2**20).append(b"one\n")
    assert refused.value.errno == errno.ELOOP


def test_lines_wait_while_the_disk_takes_none_and_those_that_are_dropped_are_counted(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(audit_log, "_MOST_WAITING", 10)
    monkeypatch.setattr(audit_log, "_RETRY_S", 0.001)
    caplog.set_level(logging.INFO, logger="csi_bridge.hub.audit")
    (tmp_path / "audit.log").mkdir()
    log = AuditLog(tmp_path, largest_bytes=2**20, now=clock, monotonic=clock)
    for number in range(15):
        log.add(Event.ORDER, who="root", number=number)
    while not log.trouble:  # the thread's first try
        pass
    (tmp_path / "audit.log").rmdir()
    while log.trouble:
        pass
    log.close()
    found = lines(tmp_path)
    assert [line["number"] for line in found if "number" in line] == list(range(5, 15))
    assert sum(line["lines"] for line in found if line["event"] == "omission") == 5
    said = [record.getMessage() for record in caplog.records]
    assert [text.partition(";")[0] for text in said][1:] == ["the audit log is written again"]
    assert said[0].startswith("cannot write the audit log ")


def test_a_hub_that_stops_while_the_disk_takes_nothing_ends_and_says_what_is_lost(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "audit.log").mkdir()
    log = AuditLog(tmp_path, largest_bytes=2**20, now=clock, monotonic=clock)
    log.add(Event.START, who="hub")
    log.close()
    assert "lines of the audit log that are lost: 1" in caplog.text
