"""Fixtures of the attacks: hubs that stay usable for others, and the certificates of both sides."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.kit.bridge import Bridge
from tests.kit.certificates import Authority
from tests.kit.joinable_hub import JoinableHub

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """The CA of hub, agents and proxy drivers."""
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture
def bridge(short_dir: Path, tmp_path: Path) -> Iterator[Bridge]:
    with Bridge(short_dir, tmp_path) as bridge:
        yield bridge


@pytest.fixture(scope="module")
def joinable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JoinableHub]:
    directory = tmp_path_factory.mktemp("hub")
    with tempfile.TemporaryDirectory(prefix="csi-") as name, Bridge(Path(name), directory) as bridge:
        yield JoinableHub(bridge, directory)
