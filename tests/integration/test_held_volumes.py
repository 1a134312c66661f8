"""A node is away, and its volume shall go to another one: real agents, and a driver that another node serves."""

import contextlib
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from common.csi import csi_pb2 as csi
from common.status import Code
from tests.kit.bridge import Agent, Bridge
from tests.kit.edge_node import DRIVER, NODE, EdgeNode, attachment, pod, volume
from tests.kit.needs import needs_mounts
from tests.kit.operator import by_hand, hub_state, node_state
from tests.kit.sidecar import Outcome, Sidecar
from tests.kit.vendor import Vendor
from tests.kit.waiting import wait_for

VENDOR = "vendor.test"
STATES = [("n1", "connected"), ("n2", "fenced")]


def detach(sidecar: Sidecar, node_id: str, handle: str = "v-1") -> Outcome:
    return sidecar.call(
        "ControllerUnpublishVolume", csi.ControllerUnpublishVolumeRequest(volume_id=handle, node_id=node_id)
    )


def run(bridge: Bridge, *argv: str) -> CompletedProcess[str]:
    return by_hand(*argv, f"--hub=unix://{bridge.hub.uds}")


def leave(bridge: Bridge, agent: Agent) -> None:
    """Kill a node's agent, and wait until the hub has noticed."""
    agent.kill()
    wait_for(lambda: not node_state(bridge.hub.uds, agent.node)["connected"], what="a node that is away")


def problems(bridge: Bridge) -> str:
    return "\n".join(hub_state(bridge.hub.uds)["problems"])


# -------------------- a hub that knows only links --------------------


class Pair:
    """Node n1 serves the controller calls, node n2 has volumes."""

    def __init__(self, bridge: Bridge, serving: Vendor, other: Vendor) -> None:
        self.bridge, self._vendor = bridge, serving
        bridge.start_hub()
        serving.identity.node_id, other.identity.node_id = "i-n1", "i-n2"
        bridge.start_agent("n1", serving.socket)
        self.other = bridge.start_agent("n2", other.socket)
        self.sidecar = bridge.start_proxy(VENDOR, node="n1").sidecar()
        bridge.wait_routed(self.sidecar)
        self.other.wait_connected()
        wait_for(lambda: VENDOR in node_state(bridge.hub.uds, "n2")["drivers"], what="the report of n2")

    def detached(self) -> int:
        return len(self._vendor.calls("ControllerUnpublishVolume"))


@pytest.fixture
def pair(bridge: Bridge, vendor: Vendor, short_dir: Path) -> Iterator[Pair]:
    with Vendor(short_dir / "other.sock") as other:
        yield Pair(bridge, vendor, other)


def test_a_node_that_is_away_keeps_its_volumes_until_it_is_back(pair: Pair) -> None:
    assert detach(pair.sidecar, "i-n2").ok
    leave(pair.bridge, pair.other)
    first, second = (detach(pair.sidecar, "i-n2") for _ in range(2))
    since = node_state(pair.bridge.hub.uds, "n2")["since"]
    held = (
        f"volume v-1 of driver {VENDOR} is not detached from node n2: it is offline since {since}, and may have it "
        "mounted; bring the node back, or, if its machine is off for certain, run csi-bridge fence n2 on the hub's "
        "host or give its Node the taint node.kubernetes.io/out-of-service"
    )
    assert (first.refusal, second.refusal) == ((Code.UNAVAILABLE, held), (Code.UNAVAILABLE, held))
    by_operator = run(
        pair.bridge,
        "call",
        "ControllerUnpublishVolume",
        f"--driver={VENDOR}",
        "--node=n1",
        '{"volume_id": "v-1", "node_id": "i-n2"}',
    )
    assert "is not detached from node n2" in by_operator.stderr + by_operator.stdout
    assert (detach(pair.sidecar, "i-n1").ok, detach(pair.sidecar, "nobody").ok) == (True, True)
    assert pair.detached() == 3
    pair.other.start()
    wait_for(lambda: detach(pair.sidecar, "i-n2").ok, what="the detach after the return")


def test_a_fence_lets_the_volumes_go_until_the_node_is_back(pair: Pair) -> None:
    refused = run(pair.bridge, "fence", "n2", "--yes")
    assert (refused.returncode, "its machine runs, because its agent is connected" in refused.stderr) == (1, True)
    leave(pair.bridge, pair.other)
    unsure = run(pair.bridge, "fence", "n2")
    assert unsure.returncode == 1
    assert "two nodes write to one volume" in unsure.stderr
    assert "there is no terminal to ask at; a script passes --yes" in unsure.stderr
    assert not detach(pair.sidecar, "i-n2").ok
    done = run(pair.bridge, "fence", "n2", "--yes", "--why=the site has burnt down")
    assert done.stdout.splitlines()[0] == "node n2 is fenced: its volumes may be detached"
    assert detach(pair.sidecar, "i-n2").ok
    assert [line["why"] for line in pair.bridge.hub.audited("fence")] == ["the site has burnt down"]
    pair.bridge.hub.kill()
    pair.bridge.hub.start()
    wait_for(lambda: detach(pair.sidecar, "i-n2").ok, what="the detach after the hub's restart")
    assert "node n2 is fenced since" in problems(pair.bridge)
    for shows in ("nodes", "status"):
        assert re.findall(r"^(n\d) +(\w+)", run(pair.bridge, shows).stdout, re.MULTILINE) == STATES

    pair.other.start()
    pair.bridge.hub.wait_logged("node n2 was fenced at")
    assert "node n2 was fenced at" in problems(pair.bridge)
    leave(pair.bridge, pair.other)
    assert not detach(pair.sidecar, "i-n2").ok
    assert run(pair.bridge, "unfence", "n2").returncode == 0
    assert "fenced" not in problems(pair.bridge)


# -------------------- a hub that knows mounts --------------------


@contextlib.contextmanager
def _in_use(short_dir: Path, tmp_path: Path) -> Iterator[tuple[EdgeNode, Sidecar, str, str]]:
    """A node with a volume in use and an unused one, and a sidecar whose detaches another node serves."""
    with EdgeNode(short_dir, tmp_path) as node, Vendor(short_dir / "v.sock", name=DRIVER) as server:
        server.identity.node_id = "i-server"
        node.start(driver_flags=())
        node.bridge.start_agent("server", server.socket)
        used, unused = node.make_volume("used"), node.make_volume("unused")
        for name, handle in (("used", used), ("unused", unused)):
            node.write(*volume(name, handle), attachment(handle, f"pv-{name}"), file=name)
        node.write(pod("web", "used"), file="web")
        _attach(node, used)
        node.wait_published("web")
        sidecar = node.bridge.start_proxy(DRIVER, node="server").sidecar()
        node.bridge.wait_routed(sidecar)
        yield node, sidecar, used, unused


@needs_mounts
def test_what_a_node_used_when_it_left_is_kept_and_goes_when_it_has_unmounted(short_dir: Path, tmp_path: Path) -> None:
    with _in_use(short_dir, tmp_path) as (node, sidecar, used, unused):
        leave(node.bridge, node.agent)
        assert "and had it mounted; bring the node back" in detach(sidecar, NODE, used).message
        assert detach(sidecar, NODE, unused).ok
        node.remove("web")
        assert not detach(sidecar, NODE, used).ok
        node.restart_agent()
        node.wait_clean()
        wait_for(lambda: detach(sidecar, NODE, used).ok, what="the detach after the unmount")


@needs_mounts
def test_a_machine_without_the_state_of_the_one_before_clears_nothing_that_this_one_had_in_use(
    short_dir: Path, tmp_path: Path
) -> None:
    with _in_use(short_dir, tmp_path) as (node, sidecar, used, _):
        leave(node.bridge, node.agent)
        node.remove("web")
        node.wipe_mounts()
        shutil.rmtree(short_dir / NODE)
        node.agent.start()
        said = f"another machine has joined as node {NODE} (it is connected since "
        wait_for(lambda: said in problems(node.bridge), what="the new machine")
        node.agent.wait_connected()
        why = "an earlier machine of this name had it mounted"
        assert why in detach(sidecar, NODE, used).message
        node.bridge.hub.kill()
        node.bridge.hub.start()
        node.agent.wait_connected()
        wait_for(lambda: why in detach(sidecar, NODE, used).message, what="the volume that is held after a restart")

        assert run(node.bridge, "fence", NODE, "--yes").returncode == 0
        wait_for(lambda: detach(sidecar, NODE, used).ok, what="the detach after the operator's word")
        assert said not in problems(node.bridge)


def _attach(node: EdgeNode, handle: str) -> None:
    request = csi.ControllerPublishVolumeRequest(
        volume_id=handle,
        node_id=NODE,
        volume_capability=csi.VolumeCapability(mount={}, access_mode={"mode": "SINGLE_NODE_WRITER"}),
    )
    with Sidecar(node.driver.socket) as sidecar:
        assert sidecar.call("ControllerPublishVolume", request).ok
