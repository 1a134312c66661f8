"""Nodes with storage of their own behind one proxy driver: each call goes where its volume is, whatever happens."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from common.csi import csi_pb2 as csi
from common.objects.topology import NODE_SEGMENT
from common.status import Code
from tests.kit.bridge import Agent, Bridge, Proxy
from tests.kit.operator import by_hand
from tests.kit.requests import create_at, delete
from tests.kit.sidecar import Outcome, Sidecar
from tests.kit.vendor import Vendor
from tests.kit.waiting import wait_for


@dataclass
class Site:
    """Two nodes, and a proxy driver for both."""

    bridge: Bridge
    vendors: dict[str, Vendor]  # by node
    agents: dict[str, Agent]  # by node
    proxy: Proxy
    sidecar: Sidecar

    def create(self, name: str, node: str) -> Outcome:
        return self.sidecar.call("CreateVolume", create_at(name, {NODE_SEGMENT: node}))

    def delete(self, name: str) -> Outcome:
        return self.sidecar.call("DeleteVolume", delete(name))

    def list_volumes(self, node: str, *volumes: str) -> None:
        """Let a node's vendor list these volumes."""
        entries = [csi.ListVolumesResponse.Entry(volume=csi.Volume(volume_id=volume)) for volume in volumes]
        self.vendors[node].on("ListVolumes", lambda _: csi.ListVolumesResponse(entries=entries))

    def asked(self, node: str, method: str) -> int:
        return len(self.vendors[node].calls(method))


@pytest.fixture
def site(bridge: Bridge, short_dir: Path) -> Iterator[Site]:
    bridge.start_hub()
    with ExitStack() as stack:
        vendors, agents = {}, {}
        for node in ("n1", "n2"):
            vendor = vendors[node] = stack.enter_context(Vendor(short_dir / f"vendor-{node}.sock"))
            vendor.identity.node_id = f"id-of-{node}"
            agents[node] = bridge.start_agent(node, vendor.socket)
        proxy = bridge.start_proxy("vendor.test", "--placement=local")
        site = Site(bridge, vendors, agents, proxy, proxy.sidecar())
        wait_for(
            lambda: all(site.create(f"warm-{node}", node).ok for node in vendors),
            what="both nodes",
            instead=lambda: site.create("warm-n1", "n1"),
        )
        yield site


def test_a_volume_is_made_where_its_topology_says_and_found_again_after_the_hubs_restart(site: Site) -> None:
    made = site.create("v", "n2")
    assert [dict(term.segments) for term in made.answer.volume.accessible_topology] == [{NODE_SEGMENT: "n2"}]
    assert not site.vendors["n2"].calls("CreateVolume")[-1].request.HasField("accessibility_requirements")
    site.bridge.hub.kill()
    site.bridge.hub.start()
    wait_for(lambda: site.delete("v").ok, what="deletion")
    assert site.asked("n1", "DeleteVolume") == 0
    assert site.asked("n2", "DeleteVolume") == 1


def test_a_name_that_may_be_on_a_node_waits_for_it_whatever_is_asked_and_other_names_do_not(site: Site) -> None:
    site.vendors["n1"].refuse("CreateVolume", Code.UNAVAILABLE, "busy")
    assert site.create("v", "n1").refusal == (Code.UNAVAILABLE, "busy")
    before = site.asked("n2", "CreateVolume")
    hub = f"--hub=unix://{site.bridge.hub.uds}"
    by_operator = by_hand("call", "CreateVolume", '{"name": "v"}', "--driver=vendor.test", "--node=n2", hub)
    assert by_operator.returncode != 0
    assert "edge node n1 may have carried out CreateVolume v of driver vendor.test already" in by_operator.stderr
    site.agents["n1"].kill()
    wait_for(lambda: "n1 is offline" in site.create("v", "n2").refusal[1], what="word of n1's end")
    assert site.asked("n2", "CreateVolume") == before
    assert site.create("w", "n2").ok
    assert site.delete("w").ok
    site.vendors["n1"].as_usual("CreateVolume")
    site.agents["n1"].start()
    wait_for(lambda: site.create("v", "n2").ok, what="n1")
    assert site.asked("n2", "CreateVolume") == before + 1


def test_a_lost_state_database_is_made_anew_from_what_the_nodes_list(site: Site, short_dir: Path) -> None:
    assert site.create("v", "n2").ok
    site.list_volumes("n1", "id-of-warm-n1")
    site.list_volumes("n2", "id-of-warm-n2", "id-of-v")
    site.bridge.hub.stop()
    for file in (short_dir / "hub").glob("state.db*"):
        file.unlink()
    site.bridge.hub.start()
    refused = []

    def deleted() -> bool:
        outcome = site.delete("v")
        refused.append(outcome.ok or outcome.refusal)
        return outcome.ok

    wait_for(deleted, what="deletion", instead=lambda: str(refused))
    assert {each[0] for each in refused if each is not True} <= {Code.UNAVAILABLE}
    assert site.asked("n1", "DeleteVolume") == 0


def test_a_name_that_a_vendor_was_at_work_on_stays_with_it_when_the_hub_dies(site: Site) -> None:
    gate = site.vendors["n1"].hold("CreateVolume")
    before = {node: site.asked(node, "CreateVolume") for node in site.vendors}
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(site.create, "v", "n1")
        site.vendors["n1"].wait_for_call("CreateVolume", before["n1"] + 1)
        site.bridge.hub.kill()
        assert first.result().refusal[0] == Code.UNAVAILABLE
    site.bridge.hub.start()
    with ThreadPoolExecutor(1) as pool:
        retry = pool.submit(
            wait_for, lambda: site.create("v", "n2").ok, what="the volume", instead=lambda: site.create("v", "n2")
        )
        gate.set()
        retry.result()
    assert site.asked("n2", "CreateVolume") == before["n2"]
    assert site.delete("v").ok
    assert site.asked("n2", "DeleteVolume") == 0


def test_what_an_operator_deletes_by_hand_lets_the_sidecars_own_deletion_succeed(site: Site) -> None:
    for vendor in site.vendors.values():
        vendor.refuse("ListVolumes", Code.INTERNAL, "no list")
    code, message = site.delete("static").refusal
    assert (code, "csi-bridge call --node NODE" in message) == (Code.UNAVAILABLE, True)
    hub = f"--hub=unix://{site.bridge.hub.uds}"
    deleted = by_hand("call", "DeleteVolume", '{"volume_id": "id-of-static"}', "--driver=vendor.test", "--node=n2", hub)
    assert deleted.returncode == 0, deleted.stderr
    assert site.delete("static").ok
    assert site.asked("n1", "DeleteVolume") == 0


def test_the_sidecars_are_told_of_a_topology_and_get_lists_of_all_nodes(site: Site) -> None:
    plugin = site.sidecar.call("GetPluginCapabilities").answer
    services = {it.service.type for it in plugin.capabilities}
    assert csi.PluginCapability.Service.VOLUME_ACCESSIBILITY_CONSTRAINTS in services
    names = {"n1": ["id-of-warm-n1", "x"], "n2": ["id-of-warm-n2", "x"]}
    for node, listed in names.items():
        site.list_volumes(node, *listed)

    def volumes(token: str = "") -> tuple[list[str], str]:
        told = site.sidecar.call("ListVolumes", csi.ListVolumesRequest(starting_token=token))
        assert told.ok, told.refusal
        return [entry.volume.volume_id for entry in told.answer.entries], told.answer.next_token

    first, token = volumes()
    assert (first, volumes(token)) == (names["n1"], (names["n2"], ""))
    site.agents["n2"].kill()
    wait_for(lambda: not site.create("v", "n2").ok, what="word of n2's end")
    assert volumes(volumes()[1]) == (names["n2"], "")  # its last list
    shown = by_hand("status", f"--hub=unix://{site.bridge.hub.uds}").stdout
    assert "ListVolumes of driver vendor.test has this node's entries from" in shown
    ended = site.sidecar.call("ListVolumes", csi.ListVolumesRequest(starting_token="of another plugin"))
    assert ended.refusal[0] is Code.ABORTED
    site.bridge.hub.kill()
    site.bridge.hub.start()
    wait_for(lambda: site.create("v", "n1").ok, what="n1")
    code, message = site.sidecar.call("ListVolumes", csi.ListVolumesRequest(starting_token=token)).refusal
    assert (code, "would lack the entries of edge node n2" in message) == (Code.UNAVAILABLE, True)
