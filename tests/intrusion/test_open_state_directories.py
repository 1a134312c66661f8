"""Attack 12: another user of the machine reads a state directory, because nothing has closed it."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.bridge import Bridge


def mode(path: Path) -> str:
    return oct(path.stat().st_mode & 0o7777)


@pytest.fixture
def open_umask() -> Iterator[None]:
    """The umask of a unit or a shell that closes nothing."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("open_umask")
def test_other_users_enter_no_state_directory_whatever_the_umask(bridge: Bridge, short_dir: Path) -> None:
    folders = [short_dir / "hub", short_dir / "n1", short_dir / "p0" / "state"]
    folders[1].mkdir(0o777)
    bridge.start_hub()
    bridge.start_agent("n1")
    bridge.start_proxy("vendor.test")
    assert [mode(folder) for folder in folders] == ["0o700"] * 3
