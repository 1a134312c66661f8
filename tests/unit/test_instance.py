"""The identity of an agent's machine: made once, counted at each start, and never trusted blindly."""

import json
import logging
from pathlib import Path

import pytest

from common.errors import SettingsError
from edge.identity.instance import Instance, next_boot


def test_the_first_start_makes_an_identity_and_its_directory(tmp_path: Path) -> None:
    found = next_boot(tmp_path / "a" / "b")
    assert found.boot == 1
    assert len(found.id) == 16
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["instance.json"]
    assert json.loads((tmp_path / "a" / "b" / "instance.json").read_text()) == {"id": found.id, "boot": 1, "version": 1}


def test_each_start_counts_one_more_and_keeps_the_identity(tmp_path: Path) -> None:
    first = next_boot(tmp_path)
    assert next_boot(tmp_path) == Instance(first.id, 2)
    assert next_boot(tmp_path) == Instance(first.id, 3)


def test_two_machines_have_two_identities(tmp_path: Path) -> None:
    assert next_boot(tmp_path / "one").id != next_boot(tmp_path / "other").id


def test_a_file_half_written_by_an_earlier_start_does_no_harm(tmp_path: Path) -> None:
    first = next_boot(tmp_path)
    (tmp_path / "instance.json.new").write_text('{"id": "')
    assert next_boot(tmp_path) == Instance(first.id, 2)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00\xff\xfe",
        b"{",
        b"[]",
        b'{"id": "i"}',
        b'{"id": null, "boot": 1}',
        b'{"id": "", "boot": 1}',
        b'{"id": "a\\nb", "boot": 1}',
        b'{"id": "' + b"i" * 65 + b'", "boot": 1}',
        b'{"id": "i", "boot": "1"}',
        b'{"id": "i", "boot": true}',
        b'{"id": "i", "boot": -1}',
        b'{"id": "i", "boot": 1e999}',
        b'{"id": "i", "boot": 99999999999999999999}',
        b"[" * 100_000,
    ],
    ids=lambda content: repr(content[:30]),
)
def test_a_file_that_cannot_be_right_becomes_a_new_identity_and_is_logged(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "instance.json"
    path.write_bytes(content)
    found = next_boot(tmp_path)
    assert found.boot == 1
    assert found.id not in {"", "i"}
    assert next_boot(tmp_path) == Instance(found.id, 2)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert str(path) in record.getMessage()
    assert "new identity" in record.getMessage()


@pytest.mark.parametrize("broken", ["os.fsync", "os.rename", "pathlib.Path.mkdir"])
def test_a_known_machine_starts_also_where_its_start_cannot_be_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, broken: str
) -> None:
    first = next_boot(tmp_path)

    def fail(*_given: object, **_named: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(broken, fail)
        for _ in range(2):
            assert next_boot(tmp_path) == Instance(first.id, 2)
    path = tmp_path / "instance.json"
    assert caplog.messages == [
        f"{path} cannot be written, and this start is not counted: No space left on device"
    ] * 2  # fmt: skip
    assert next_boot(tmp_path) == Instance(first.id, 2)
    assert [each.name for each in tmp_path.iterdir()] == ["instance.json"]


def test_a_machine_without_an_identity_does_not_start_where_it_cannot_keep_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_given: object, **_named: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("os.rename", fail)
    with pytest.raises(SettingsError, match=r"--state-dir=.*: cannot be written: Read-only file system"):
        next_boot(tmp_path)


def test_a_file_in_the_directorys_place_or_a_directory_in_the_files_place_is_the_operators_mistake(
    tmp_path: Path,
) -> None:
    (tmp_path / "state").touch()
    with pytest.raises(SettingsError, match=r"--state-dir=.*: cannot be written: "):
        next_boot(tmp_path / "state")
    (tmp_path / "instance.json").mkdir()
    with pytest.raises(SettingsError, match="--state-dir="):
        next_boot(tmp_path)
