"""State of an older version (tests/stored): the new hub and agent start on it, mount, route and forget nothing."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from common.csi import csi_pb2 as csi
from common.status import Code
from common.topology import NODE_SEGMENT
from edge.manager.states import read_boot
from tests.kit.edge_node import NODE, EdgeNode
from tests.kit.needs import needs_mounts
from tests.kit.operator import by_hand, hub_state, node_state
from tests.kit.requests import create
from tests.kit.stored import STORED, restore
from tests.kit.vendor import Vendor
from tests.kit.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.kit.sidecar import Outcome, Sidecar

COPY = "before-migrations"
PODS = ("web", "one", "two", "safe", "large")
_THEIR_BASE, _THEIR_BOOT = "/tmp/csi-bridge-state", "00000000-0000-4000-8000-00000000b007"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[OlderNode]:
    with tempfile.TemporaryDirectory(prefix="csi-") as directory, OlderNode(Path(directory), tmp_path) as node:
        yield node


class OlderNode(EdgeNode):
    """An edge node whose hub and agent start on the state of an older version.

    Attributes:
        handles: by name: the volumes that the vendor's driver has in place of those of the copy.
    """

    handles: dict[str, str]
    _instead: Mapping[str, str]

    def start_older(self) -> None:
        """Start the driver with the copy's volumes, and the hub, on the copy. It reads the manifests of then."""
        self.start_vendor(("--no-attach",))
        dump = (STORED / COPY / "n1/volumes.db.sql").read_text()
        theirs = dict(re.findall(r"INSERT INTO devices VALUES \('dirdriver\.csi', '([^']*)', 'pv-([^']*)'", dump))
        assert len(theirs) == 5
        self.handles = {name: self.make_volume(name, size_bytes=32 << 20) for name in theirs.values()}
        handles = {handle: self.handles[name] for handle, name in theirs.items()}
        self._instead = {_THEIR_BASE: str(self.directory), _THEIR_BOOT: read_boot(), **handles}
        restore(f"{COPY}/hub", self.directory / "hub", instead=self._instead)
        for file in (self.directory / "hub/manifests").glob("*.yaml"):
            shutil.copyfile(file, self.manifests / file.name)
        self.restore_agent()
        self.bridge.start_hub(f"--manifests={self.manifests}")

    def listed(self) -> set[tuple[str, str, str]]:
        """Return each volume that the hub knows: the name of its PersistentVolume, else its id, with node and state."""
        output = by_hand("volumes", "--output=json", f"--hub=unix://{self.bridge.hub.uds}").stdout
        return {(each["pv"] or each["volume"], each["node"], each["state"]) for each in json.loads(output)["volumes"]}

    def restore_agent(self) -> None:
        """Give the agent the state of the copy."""
        shutil.rmtree(self.directory / NODE, ignore_errors=True)
        restore(f"{COPY}/n1", self.directory / NODE, instead=self._instead)


@needs_mounts
def test_an_agent_mounts_all_volumes_that_its_older_self_knew_without_a_hub_and_keeps_them(node: OlderNode) -> None:
    node.start_older()
    node.bridge.hub.kill()
    node.start_agent(wait=False)
    node.agent.wait_ready()
    mounted = {name: node.wait_published(name) for name in PODS}
    for (path,) in mounted.values():
        (path / "file").write_text("theirs")

    # The older state once more, while its volumes are mounted.
    node.agent.kill()
    calls = node.calls()
    node.restore_agent()
    node.bridge.hub.start()
    node.restart_agent()
    node.wait_told()
    for name in PODS:
        assert node.wait_published(name) == mounted[name]
        assert (mounted[name][0] / "file").read_text() == "theirs"
    repeated = {call.fields["volume_id"] for call in node.calls()[len(calls) :]}
    assert repeated <= {node.handles["stuck"]}  # its staging was uncertain
    assert node_state(node.bridge.hub.uds, NODE)["connected"]
    assert node.problems() == []

    for file in ("web", "both", "locked", "grown", "stuck"):
        node.remove(file)
    node.wait_clean()


def test_a_hub_knows_the_nodes_volumes_and_last_good_manifests_of_its_older_self(node: OlderNode) -> None:
    node.start_older()
    state = hub_state(node.bridge.hub.uds)
    assert {each["node"]: each["connected"] for each in state["nodes"]} == {"n1": False, "n2": False, "n3": False}
    read = {
        *((f"pv-{name}", "n1", "mounted") for name in ("data", "both", "locked", "grown")),
        ("pv-stuck", "n1", "unknown"),  # the older agent told its reason in a sentence, and no state
        *((volume, volume[-2:], "no PV") for volume in ("id-of-on-n2", "found-on-n2", "id-of-on-n3")),
    }
    wait_for(lambda: node.listed() == read, what="volumes of the older hub", instead=node.listed)
    node.bridge.hub.kill()
    (node.manifests / "web.yaml").write_text("broken: [")
    node.bridge.hub.start()
    node.start_agent()
    wait_for(lambda: any("web.yaml" in problem for problem in node.problems()), what="problem", instead=node.problems)
    assert any(found["pod"] == "web" for found in node.state()["volumes"])


def test_a_hub_routes_by_the_placement_of_its_older_self_and_frees_no_name_whose_outcome_is_open(
    node: OlderNode,
) -> None:
    node.start_older()
    cache = STORED / COPY / "p1/identity-vendor.test.json"
    sidecar = node.bridge.start_proxy("vendor.test", "--placement=local", cache=cache.read_bytes()).sidecar()
    assert sidecar.call("GetPluginInfo").answer.name == "vendor.test"  # from the older proxy driver's cache
    with ExitStack() as stack:
        vendors = {}
        for name in ("n2", "n4"):
            vendor = vendors[name] = stack.enter_context(Vendor(node.directory / f"vendor-{name}.sock"))
            vendor.identity.node_id = f"id-of-{name}"
            node.bridge.start_agent(name, vendor.socket)
        wait_for(lambda: at(sidecar, "new", "n4").ok, what="n4", instead=lambda: at(sidecar, "new", "n4"))

        assert sidecar.call("DeleteVolume", csi.DeleteVolumeRequest(volume_id="id-of-on-n2")).ok
        assert [call.request.volume_id for call in vendors["n2"].calls("DeleteVolume")] == ["id-of-on-n2"]
        code, why = sidecar.call("DeleteVolume", csi.DeleteVolumeRequest(volume_id="id-of-on-n3")).refusal
        assert (code, "n3" in why) == (Code.UNAVAILABLE, True)
        assert vendors["n4"].calls("DeleteVolume") == []

        code, why = at(sidecar, "open-on-n3", "n4").refusal
        assert (code, "n3" in why) == (Code.UNAVAILABLE, True)
        assert at(sidecar, "open-on-n2", "n4").ok
        assert [call.request.name for call in vendors["n2"].calls("CreateVolume")] == ["open-on-n2"]
        assert [call.request.name for call in vendors["n4"].calls("CreateVolume")] == ["new"]


def at(sidecar: Sidecar, name: str, node: str) -> Outcome:
    """CreateVolume as external-provisioner asks with --strict-topology."""
    term = csi.Topology(segments={NODE_SEGMENT: node})
    wanted = csi.TopologyRequirement(requisite=[term], preferred=[term])
    return sidecar.call("CreateVolume", create(name, accessibility_requirements=wanted))
