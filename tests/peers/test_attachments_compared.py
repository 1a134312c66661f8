"""The stock attacher compares its attachments with the list of all nodes, each of which has storage of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from common.csi import csi_pb2 as csi
from tests.kit.bridge import Agent, Bridge
from tests.kit.peers import manifests
from tests.kit.peers.control_plane import ControlPlane
from tests.kit.peers.sidecars import Sidecars
from tests.kit.peers.testdriver import RunningDriver, make_on, start_on_each
from tests.kit.processes import Process, Supervisor
from tests.kit.sidecar import Sidecar
from tests.kit.waiting import wait_for

pytestmark = pytest.mark.slow

_LIMIT_S = 60.0

_REFUSED = "would lack the entries of edge node n2"


class Site:
    """Two nodes, each with a volume that is attached there, and an attacher that compares every two seconds.

    Attributes:
        vendors, agents: by node.
    """

    def __init__(
        self, bridge: Bridge, vendors: dict[str, RunningDriver], agents: dict[str, Agent], sidecar: Sidecar, name: str
    ) -> None:
        self.bridge, self.vendors, self.agents = bridge, vendors, agents
        self.volumes = {node: make_on(node, sidecar, driver=name) for node in vendors}  # by node: the id
        self.attacher: Process

    def detach_behind_its_back(self, node: str) -> None:
        with Sidecar(self.vendors[node].socket, patient=True) as sidecar:
            asked = csi.ControllerUnpublishVolumeRequest(volume_id=self.volumes[node], node_id=node)
            outcome = sidecar.call("ControllerUnpublishVolume", asked)
        assert outcome.ok, outcome.refusal

    def attached(self, node: str) -> int:
        return len(self.vendors[node].calls("ControllerPublishVolume"))

    def wait_attached(self, node: str, more_than: int) -> None:
        wait_for(
            lambda: self.attached(node) > more_than,
            what=f"attachment on {node}",
            timeout_s=_LIMIT_S,
            instead=lambda: self.attacher.output()[-2_000:],
        )

    def wait_compared(self) -> None:
        """Wait until the attacher has compared twice: it attaches again what it saw half attached."""
        vendor = self.vendors["n2"]
        before = len(vendor.calls("ListVolumes"))
        wait_for(lambda: len(vendor.calls("ListVolumes")) > before + 2, what="comparisons", timeout_s=_LIMIT_S)


@pytest.fixture
def site(
    short_dir: Path,
    supervisor: Supervisor,
    namespace: str,
    control_plane: ControlPlane,
    sidecars: Sidecars,
) -> Iterator[Site]:
    api, name = control_plane.api, f"{namespace}.csi"
    vendors = start_on_each(("n1", "n2"), supervisor, short_dir, name=name)
    with Bridge(short_dir, supervisor.directory) as bridge:
        bridge.start_hub()
        agents = {node: bridge.start_agent(node, vendor.socket) for node, vendor in vendors.items()}
        proxy = bridge.start_proxy(name, "--placement=local")
        site = Site(bridge, vendors, agents, proxy.sidecar(), name)
        site.attacher = sidecars.start("csi-attacher", proxy.socket, "--reconcile-sync=2s", "--timeout=5s")
        for node, volume in site.volumes.items():
            api.create(manifests.node(f"{node}-{namespace}"))
            api.create(manifests.csi_node(f"{node}-{namespace}", drivers={name: node}))
            api.create(manifests.persistent_volume(f"{node}-{namespace}", driver=name, handle=volume))
            attachment = {"driver": name, "node": f"{node}-{namespace}", "volume": f"{node}-{namespace}"}
            api.create(manifests.volume_attachment(f"{node}-{namespace}", **attachment))
            api.wait_status("VolumeAttachment", f"{node}-{namespace}", "attached")
        site.wait_compared()
        yield site


def test_a_lost_attachment_is_made_again_and_no_other_also_while_a_node_is_away(
    site: Site, namespace: str, control_plane: ControlPlane
) -> None:
    first, other = site.attached("n1"), site.attached("n2")
    site.detach_behind_its_back("n1")
    site.wait_attached("n1", first)
    site.wait_compared()
    again = site.attached("n1")
    site.agents["n2"].kill()
    site.detach_behind_its_back("n1")
    site.wait_attached("n1", again)
    found = control_plane.api.get("VolumeAttachment", f"n2-{namespace}")
    assert found is not None
    assert found["status"]["attached"]
    assert "attachError" not in found["status"]
    assert site.attached("n2") == other


def test_without_a_list_of_a_node_nothing_is_attached_again_until_it_is_back(
    site: Site, namespace: str, control_plane: ControlPlane
) -> None:
    before = {node: site.attached(node) for node in site.vendors}
    site.agents["n2"].kill()
    site.bridge.hub.kill()
    site.bridge.hub.start()  # which has no last list
    site.detach_behind_its_back("n1")
    wait_for(lambda: site.attacher.output().count(_REFUSED) > 2, what="refused lists", timeout_s=_LIMIT_S)
    assert {node: site.attached(node) for node in site.vendors} == before
    site.agents["n2"].start()
    site.wait_attached("n1", before["n1"])
    assert site.attached("n2") == before["n2"]
    found = control_plane.api.get("VolumeAttachment", f"n2-{namespace}")
    assert found is not None
    assert found["status"]["attached"]
