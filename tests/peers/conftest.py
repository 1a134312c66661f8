"""Fixtures of the peer tests: the peers themselves, processes, a control plane, sidecars, csi-sanity.

``make peers`` builds the peers, and so does ``make test`` with ``CSI_BRIDGE_REQUIRE_PEERS=1``. A test whose peer is
missing is skipped; with the variable ``tests/conftest.py`` makes a failure of that.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.kit import needs
from tests.kit.bridge import Bridge
from tests.kit.leftovers import clear
from tests.kit.peers import manifests
from tests.kit.peers.claims import Claims
from tests.kit.peers.control_plane import ControlPlane
from tests.kit.peers.earlier_objects import EarlierObjects
from tests.kit.peers.sanity import SanityReport, run_sanity
from tests.kit.peers.sidecars import Sidecars
from tests.kit.peers.testdriver import RunningDriver, start_testdriver
from tests.kit.peers.tunnel import Tunnel
from tests.kit.processes import Supervisor
from tests.peers import build
from tests.peers.kubelet.kubelet_node import KubeletNode

_HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is here, before the marks are used to choose."""
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(pytest.mark.peers)


@pytest.fixture(scope="session")
def peer() -> Callable[[str], Path]:
    """Finds a peer's binary or published file by name; skips the test where there is none."""

    def find(name: str) -> Path:
        found = build.find(name)
        if found is not None:
            return found
        if name in build.ON_PATH:
            # No module proxy serves these, so that no run can insist on them.
            pytest.skip(needs.on_path(name))
        pytest.skip(needs.peer(name))

    return find


@pytest.fixture
def place(short_dir: Path) -> Iterator[Path]:
    """The same, cleared of mounts before it is removed."""
    yield short_dir
    clear(short_dir)


@pytest.fixture
def kubelet_node(place: Path, peer: Callable[[str], Path]) -> Iterator[KubeletNode]:
    node = KubeletNode(place / "n", peer=peer)
    try:
        node.start()
        yield node
    finally:
        node.stop()


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    """Starts processes for one test and stops them at its end, the last one first."""
    with Supervisor(tmp_path / "logs") as supervisor:
        yield supervisor


@pytest.fixture(scope="session")
def running_control_plane(
    peer: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ControlPlane, EarlierObjects]]:
    plane = ControlPlane(tmp_path_factory.mktemp("control-plane"), peer=peer)
    try:
        plane.start()
        yield plane, EarlierObjects(plane.api)
    finally:
        plane.stop()


@pytest.fixture
def control_plane(running_control_plane: tuple[ControlPlane, EarlierObjects]) -> ControlPlane:
    """The control plane, without the objects of earlier tests."""
    plane, earlier = running_control_plane
    earlier.remove()
    return plane


@pytest.fixture
def scheduler(control_plane: ControlPlane) -> Iterator[None]:
    control_plane.start_scheduler()
    yield
    control_plane.scheduler.stop()


@pytest.fixture
def namespace(control_plane: ControlPlane) -> str:
    """A namespace for one test."""
    return control_plane.new_namespace()


@pytest.fixture
def sidecars(control_plane: ControlPlane, supervisor: Supervisor, peer: Callable[[str], Path]) -> Sidecars:
    """Starts stock sidecars on CSI sockets."""
    return Sidecars(control_plane=control_plane, supervisor=supervisor, peer=peer)


@pytest.fixture
def testdriver(supervisor: Supervisor, short_dir: Path) -> Callable[..., RunningDriver]:
    """Starts the test driver in the test's short directory; takes the keyword arguments of `start_testdriver`."""

    def start(name: str = "dirdriver.csi", **settings: object) -> RunningDriver:
        return start_testdriver(supervisor, short_dir, name=name, **settings)  # type: ignore[arg-type]  # passed on

    return start


@pytest.fixture
def claims(control_plane: ControlPlane, namespace: str) -> Iterator[Claims]:
    """Claims of a storage class, named as the driver is, which no other test has: `<namespace>.csi`."""
    name = f"{namespace}.csi"
    control_plane.api.create(manifests.storage_class(name, allowVolumeExpansion=True))
    yield Claims(api=control_plane.api, namespace=namespace, storage_class=name)
    control_plane.api.delete("StorageClass", name)


@pytest.fixture
def tunnel_to(short_dir: Path, supervisor: Supervisor, *, in_hub: bool) -> Iterator[Callable[[Path, str], Tunnel]]:
    """Starts a bridge in front of a vendor's socket, given the driver's name: the one bridge of a test."""
    with Bridge(short_dir, supervisor.directory) as bridge:

        def start(vendor: Path, driver: str) -> Tunnel:
            bridge.serves = driver if in_hub else ""
            return Tunnel(bridge, driver=driver, vendor=vendor)

        yield start


@pytest.fixture
def sanity(short_dir: Path, peer: Callable[[str], Path]) -> Callable[..., SanityReport]:
    """Runs csi-sanity; takes the keyword arguments of `run_sanity`. May be called again in the same test."""
    runs = 0

    def run(**settings: object) -> SanityReport:
        nonlocal runs
        runs += 1
        return run_sanity(peer("csi-sanity"), short_dir / f"sanity-{runs}", **settings)  # type: ignore[arg-type]  # passed on

    return run
