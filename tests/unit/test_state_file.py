"""A state file's version: older contents become today's, newer ones are left as they are."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from common.errors import NewerState
from common.state_file import Form, read_state, write_state

if TYPE_CHECKING:
    from pathlib import Path

FIRST = Form("hub")
SECOND = Form("hub", (lambda body: {"names": [body["name"]]},))
THIRD = Form("hub", (*SECOND.steps, lambda body: {"names": [name.upper() for name in body["names"]]}))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.json"


def test_what_was_written_is_read_with_its_version(path: Path) -> None:
    write_state(path, FIRST, {"a": 1})
    assert json.loads(path.read_text()) == {"a": 1, "version": 1}
    assert read_state(path, FIRST)["a"] == 1


def test_an_older_file_goes_through_all_steps_since(path: Path) -> None:
    write_state(path, FIRST, {"name": "a"})
    assert read_state(path, THIRD) == {"names": ["A"]}
    write_state(path, SECOND, {"names": ["b"]})
    assert read_state(path, THIRD) == {"names": ["B"]}
    write_state(path, THIRD, {"names": ["C"]})
    assert read_state(path, THIRD)["names"] == ["C"]


def test_a_newer_file_is_refused_and_left_as_it_is(path: Path) -> None:
    write_state(path, SECOND, {"names": []})
    before = path.read_bytes(), path.stat().st_mtime_ns
    with pytest.raises(NewerState, match=r"state\.json: was written by a newer hub \(schema 2, this one knows 1\)"):
        read_state(path, FIRST)
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before


@pytest.mark.parametrize(
    "content", ["", "{", "7", "[]", "{}", '{"version": 0}', '{"version": "1"}', '{"version": true}', "[" * 100_000],
    ids=lambda content: content[:20],
)  # fmt: skip
def test_another_content_is_a_value_error(path: Path, content: str) -> None:
    path.write_text(content)
    with pytest.raises(ValueError, match=r"."):
        read_state(path, FIRST)


def test_a_step_that_does_not_know_the_content_is_a_value_error(path: Path) -> None:
    path.write_text('{"version": 2}')
    with pytest.raises(ValueError, match="KeyError"):
        read_state(path, THIRD)
