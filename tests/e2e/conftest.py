"""Fixtures of the end-to-end tests: one cluster for all of them, and a tenant with a namespace of its own for each.

`make e2e` runs them. They need root, mount namespaces, loop devices, the peers that `make peers` builds, and
containerd, runc and busybox from Debian. What is missing skips them and says so; with ``CSI_BRIDGE_REQUIRE_PEERS=1`` it
fails them.
"""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from tests.e2e import debian
from tests.e2e.cluster import Cluster
from tests.e2e.installed.network import own_network
from tests.e2e.installed.site import Site
from tests.e2e.lost_leaders import HUBS, losing_leaders
from tests.e2e.tenant import Tenant
from tests.e2e.upstream.cluster import UpstreamCluster
from tests.kit import needs
from tests.peers import build

_HERE = Path(__file__).parent
_CAP_SYS_ADMIN = 21
_LIMIT_S = 1200  # Of one test, beside all others. The first also starts the cluster.

C = TypeVar("C", Cluster, UpstreamCluster, Site)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is here, before the marks are used to choose."""
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(pytest.mark.e2e)
            item.add_marker(pytest.mark.timeout(_LIMIT_S), append=False)
            if HUBS > 1 and item.get_closest_marker("one_hub"):
                item.add_marker(pytest.mark.skip("it stops the only hub itself"))


def _peer(name: str) -> Path:
    found = build.find(name)
    if found is None:
        pytest.skip(needs.peer(name))
    assert found is not None
    return found


def _tool(name: str) -> Path:
    found = debian.find(name)
    if found is None:
        pytest.skip(f"needs {name}: apt-get install {debian.PACKAGES[name]}")
    assert found is not None
    return found


@contextlib.contextmanager
def _running(kind: type[C], logs: Path) -> Iterator[C]:
    """A cluster of a kind, from its start to its stop."""
    if missing := needs.capability(_CAP_SYS_ADMIN, "CAP_SYS_ADMIN"):
        # A run that requires the peers is one that wants these tests.
        (pytest.fail if os.environ.get("CSI_BRIDGE_REQUIRE_PEERS") == "1" else pytest.skip)(missing)
    with tempfile.TemporaryDirectory(prefix="csi-e-", ignore_cleanup_errors=True) as directory:
        cluster = kind(Path(directory), logs, peer=_peer, tool=_tool)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    # The logs stay where pytest keeps those of its last runs.
    with _running(Cluster, tmp_path_factory.mktemp("e2e")) as cluster:
        yield cluster


@pytest.fixture
def tenant(cluster: Cluster) -> Iterator[Tenant]:
    """A namespace of the test's own. What the test left in it is removed at the end.

    If the cluster has several hubs, their leader is killed again and again meanwhile.
    """
    tenant = Tenant(cluster)
    with losing_leaders(cluster.bridge.hubs):
        yield tenant
        tenant.leave()


@pytest.fixture
def upstream_cluster(tmp_path: Path) -> Iterator[UpstreamCluster]:
    with _running(UpstreamCluster, tmp_path) as cluster:
        yield cluster


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A cluster on which the bridge is not installed yet, in a network of its own."""
    _tool("ip")
    with own_network(), _running(Site, tmp_path) as site:
        yield site
