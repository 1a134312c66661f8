"""A state file's version: older contents become today's, newer ones are left as they are."""

from __future__ import annotations

import importlib
import json
import pkgutil
from typing import TYPE_CHECKING, Any

import pytest

import cloud
import edge
from cloud import fences, identity_cache
from cloud.sources.manifests import claim_sizes, good_manifests
from common.errors import NewerState
from common.state_file import Form, read_state, write_state
from edge import home, identity, instance
from edge.fencing import plan
from edge.registry import driver_file
from tests.kit.stored import STORED

if TYPE_CHECKING:
    from pathlib import Path

FORMS = {
    ".version": good_manifests.FORM,
    "claim-sizes.json": claim_sizes.FORM,
    "drivers.json": driver_file.FORM,
    "fence.json": plan.FORM,
    "fences.json": fences.FORM,
    "home.json": home.FORM,
    "identity-*.json": identity_cache.FORM,
    "instance.json": instance.FORM,
    "joined.json": identity.FORM,
}

NEVER_RELEASED = {("drivers.json", 1)}
"""Forms of which no copy is needed: no agent that reads them as more than damaged was ever released."""

FIRST = Form("hub")
SECOND = Form("hub", (lambda names: {"names": names},))
THIRD = Form("hub", (*SECOND.steps, lambda body: {"names": [name.upper() for name in body["names"]]}))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.json"


def test_what_was_written_is_read_with_its_version(path: Path) -> None:
    write_state(path, FIRST, {"a": 1})
    assert json.loads(path.read_text()) == {"a": 1, "version": 1}
    assert read_state(path, FIRST)["a"] == 1


def test_a_file_without_a_version_is_of_the_first_form(path: Path) -> None:
    path.write_text('{"a": 1}')
    assert read_state(path, FIRST) == {"a": 1}


def test_an_older_file_goes_through_all_steps_since(path: Path) -> None:
    path.write_text('["a"]')
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
    "content", ["", "{", "7", "[]", '{"version": 0}', '{"version": "1"}', '{"version": true}', "[" * 100_000],
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


def test_every_form_of_the_program_is_known_here() -> None:
    found = set()
    for package in (cloud, edge):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            values = vars(importlib.import_module(module.name)).values()
            found |= {id(value) for value in values if isinstance(value, Form)}
    assert found == {id(form) for form in FORMS.values()}


def test_each_form_has_a_stored_copy_of_the_form_before_it() -> None:
    found = {(name, _version(file)) for name in FORMS for file in STORED.rglob(name)}
    needed = {(name, older) for name, form in FORMS.items() for older in range(1, form.version)}
    assert needed - found - NEVER_RELEASED == set()


@pytest.mark.parametrize(
    ("name", "file"),
    [(name, file) for name in FORMS for file in sorted(STORED.rglob(name))],
    ids=lambda value: value if isinstance(value, str) else value.parent.name,
)
def test_a_stored_copy_of_each_file_is_read(name: str, file: Path) -> None:
    assert read_state(file, FORMS[name])


def _version(file: Path) -> int:
    content: Any = json.loads(file.read_text())
    return int(content.get("version", 1)) if isinstance(content, dict) else 1
