"""The mounts that the example driver makes and takes away, on this machine."""

from __future__ import annotations

import os
import subprocess
import threading
from typing import TYPE_CHECKING

import pytest

from examples.dirdriver import mounts
from examples.dirdriver.commands import run
from examples.dirdriver.errors import CsiError
from tests.integration.testdriver.support import needs_mounts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = needs_mounts


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """Where a file system is mounted that holds a file."""
    target = tmp_path / "mount"
    target.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", target], check=True)
    (target / "file").touch()
    yield target
    subprocess.run(["umount", "--lazy", target], check=False, capture_output=True)


def test_who_only_looks_into_a_mount_does_not_keep_it(mounted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = os.open(mounted / "file", os.O_RDONLY)
    leaving = threading.Thread(target=os.close, args=(opened,))
    tries: list[tuple[str, ...]] = []

    def run_noted(*command: str) -> str:
        tries.append(command)
        try:
            return run(*command)
        finally:
            if len(tries) == 1:
                leaving.start()

    monkeypatch.setattr("examples.dirdriver.mounts.BUSY_WAIT_S", 60.0)
    monkeypatch.setattr("examples.dirdriver.mounts.run", run_noted)
    mounts.unmount(mounted)
    leaving.join()
    assert len(tries) > 1
    assert mounts.mounted_at(mounted) is None


def test_a_mount_that_stays_in_use_is_an_error(mounted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("examples.dirdriver.mounts.BUSY_WAIT_S", 0.05)
    with (mounted / "file").open(), pytest.raises(CsiError, match="busy"):
        mounts.unmount(mounted)
    assert mounts.mounted_at(mounted) is not None
