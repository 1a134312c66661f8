"""Fixtures of the attacks: hubs that stay usable for others, and the certificates of both sides."""

import ssl
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.bridge import Bridge, Hub
from tests.kit.certificates import Authority
from tests.kit.intruder import lasting_hub, outcome
from tests.kit.joinable_hub import JoinableHub
from tests.kit.stranger import hello

BYSTANDER = "bystander"  # a node that no attack names


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """The CA of hub, agents and proxy drivers."""
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture
def bridge(short_dir: Path, tmp_path: Path) -> Iterator[Bridge]:
    with Bridge(short_dir, tmp_path) as bridge:
        yield bridge


@pytest.fixture(scope="module")
def _hub(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[tuple[Hub, ssl.SSLContext]]:
    with lasting_hub(tmp_path_factory.mktemp("logs"), *authority.hub().flags) as hub:
        yield hub, authority.edge(BYSTANDER).client()


@pytest.fixture
def hub(_hub: tuple[Hub, ssl.SSLContext]) -> Iterator[Hub]:
    """A hub with TLS that the tests of a module share. After each of them it still admits a node that did nothing."""
    hub, tls = _hub
    yield hub
    assert outcome(hub, hello("edge", BYSTANDER), tls) == "welcome"


@pytest.fixture(scope="module")
def _insecure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    with lasting_hub(tmp_path_factory.mktemp("logs")) as hub:
        yield hub


@pytest.fixture
def insecure(_insecure: Hub) -> Iterator[Hub]:
    """The same without TLS."""
    yield _insecure
    assert outcome(_insecure, hello("edge", BYSTANDER)) == "welcome"


@pytest.fixture(scope="module")
def joinable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JoinableHub]:
    directory = tmp_path_factory.mktemp("hub")
    with tempfile.TemporaryDirectory(prefix="csi-") as name, Bridge(Path(name), directory) as bridge:
        yield JoinableHub(bridge, directory)
