"""The command `audit-log`: every line once, also while the hub writes and rotates."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from cli import audit_log
from cli.audit_log import Lines
from cli.main import cli
from cli.moment import moment
from cloud.trust.audit_file import PARTS, AuditFile
from common.errors import BridgeError

if TYPE_CHECKING:
    from pathlib import Path


def line(number: int, at: str = "2026-11-21T09:12:03.250Z") -> bytes:
    return json.dumps({"ts": at, "event": "order", "number": number}).encode() + b"\n"


def numbers(output: str) -> list[int]:
    return [json.loads(each)["number"] for each in output.splitlines()]


def printed(*flags: str) -> str:
    result = CliRunner().invoke(cli, ["audit-log", *flags])
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


def test_the_lines_of_all_files_are_printed_from_the_oldest_as_they_are(tmp_path: Path) -> None:
    file = AuditFile(tmp_path, largest_bytes=PARTS * 200)
    for number in range(20):
        file.append(line(number))
    assert len(list(tmp_path.iterdir())) > 5
    assert numbers(printed("--state-dir", str(tmp_path))) == list(range(20))


def test_only_the_lines_since_a_time_are_printed(tmp_path: Path) -> None:
    file = AuditFile(tmp_path, largest_bytes=2**20)
    for number, second in enumerate(("03.250", "04.000", "04.001")):
        file.append(line(number, f"2026-11-21T09:12:{second}Z"))
    for since in ("2026-11-21T09:12:04Z", "2026-11-21T10:12:04+01:00", "2026-11-21 09:12:04"):
        assert numbers(printed("--state-dir", str(tmp_path), "--since", since)) == [1, 2]


def test_a_duration_is_before_now_and_any_other_text_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 10_000.0)
    assert (moment("1h"), moment("1970-01-01T00:00:07Z")) == (6_400.0, 7.0)
    with pytest.raises(ValueError, match="must be a duration like 24h, or a time like"):
        moment("yesterday")


def test_what_a_killed_hub_has_cut_off_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "audit.log").write_bytes(b'{"ts":"2026\n7\n[]\n' + line(1) + b'{"ts":"')
    assert numbers(printed("--state-dir", str(tmp_path))) == [1]


def test_a_follower_gets_each_line_once_while_the_hub_writes_and_rotates(tmp_path: Path) -> None:
    file = AuditFile(tmp_path, largest_bytes=PARTS * 200)
    file.append(line(0))
    lines, seen = Lines(tmp_path), list[bytes]()
    for number in range(1, 60):
        file.append(line(number))
        if number % 3 == 0:
            lines.read(seen.append)
    assert [json.loads(each)["number"] for each in seen] == list(range(60))[:58]


def test_a_line_that_is_being_written_is_printed_once_it_is_whole(tmp_path: Path) -> None:
    path, whole = tmp_path / "audit.log", line(7)
    path.write_bytes(whole[:9])
    lines, seen = Lines(tmp_path), list[bytes]()
    lines.read(seen.append)
    path.write_bytes(whole)
    lines.read(seen.append)
    assert seen == [whole]


def test_a_rotation_amid_a_reading_loses_no_line_and_repeats_none(tmp_path: Path) -> None:
    file = AuditFile(tmp_path, largest_bytes=PARTS * 200)
    for number in range(6):
        file.append(line(number))
    lines, seen = Lines(tmp_path), list[bytes]()

    def take(found: bytes) -> None:
        if not seen:
            for number in range(6, 12):
                file.append(line(number))
        seen.append(found)

    lines.read(take)
    lines.read(take)
    assert [json.loads(each)["number"] for each in seen] == list(range(12))


def test_a_directory_without_a_log_is_named(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["audit-log", "--state-dir", str(tmp_path)])
    assert result.exit_code == 1
    assert result.stderr.startswith(f"csi-bridge: there is no audit.log in {tmp_path}")


def test_a_hub_that_is_down_is_told_with_the_remedy(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["audit-log", "--hub", f"unix://{tmp_path}/none.sock"])
    assert result.exit_code == 1
    assert result.stderr.rstrip().endswith("for a hub that is down, name its state directory by --state-dir")


def test_a_follower_ends_with_ctrl_c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "audit.log").write_bytes(line(1))

    def interrupted(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(audit_log.time, "sleep", interrupted)
    assert numbers(printed("--state-dir", str(tmp_path), "--follow")) == [1]


def test_lines_of_no_directory_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BridgeError, match="there is no audit"):
        Lines(tmp_path / "none")
