"""A minute of the chaos test: docs/chaos.md."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos.site import Site
from tests.chaos.trial import run

_SECONDS = 60.0


@pytest.mark.slow
def test_a_minute_of_faults_anywhere_loses_and_doubles_no_volume_and_leaves_nothing(
    short_dir: Path, tmp_path: Path, peer: Callable[[str], Path]
) -> None:
    site = Site(short_dir, tmp_path, peer)
    try:
        result = run(site, seed=1, operations=10**6, seconds=_SECONDS, at_once=24, say=lambda _line: None)
    finally:
        site.stop()
    assert (result.findings, result.complaints) == ([], []), result.report()
    assert len(result.faults) >= 15, result.report()
    assert len(result.steps) >= 100, result.report()
