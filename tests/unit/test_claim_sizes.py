"""The sizes of claims: they outlive the hub and a power cut, and a file that nobody can read has none."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from cloud.sources.manifests.claim_sizes import ClaimSizes
from common.errors import SettingsError

if TYPE_CHECKING:
    from pathlib import Path


def test_sizes_are_kept_for_the_next_hub(tmp_path: Path) -> None:
    found = ClaimSizes(tmp_path / "state")
    assert found.sizes == {}
    found.keep({"u/v": "1Gi"})
    assert ClaimSizes(tmp_path / "state").sizes == {"u/v": "1Gi"}


@pytest.mark.parametrize(
    "content", ["{", "[" * 100_000, "[1]", '{"u/v": "much"}', '{"u/v": null}', '{"u/v": "-1"}', "\0", ""]
)
def test_an_entry_that_is_no_size_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "claim-sizes.json").write_text(content)
    assert ClaimSizes(tmp_path).sizes == {}


def test_an_unreadable_file_is_named_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "claim-sizes.json").write_text("{")
    ClaimSizes(tmp_path)
    assert "claim-sizes.json is unreadable, and claims get the size of their volumes" in caplog.text


def test_a_newer_hubs_file_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    content = json.dumps({"version": 2, "u/v": "1Gi"})
    (tmp_path / "claim-sizes.json").write_text(content)
    with pytest.raises(SettingsError, match="was written by a newer hub"):
        ClaimSizes(tmp_path)
    assert (tmp_path / "claim-sizes.json").read_text() == content
