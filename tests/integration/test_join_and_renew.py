"""A node joins a hub, renews its certificate by itself, and is found out if its state directory was copied."""

import contextlib
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Self

import pytest

from common.net.enrolment import parse_token
from common.status import Code
from edge.identity.identity import Identity
from tests.kit.bridge import Agent, Proxy
from tests.kit.certificates import Pem
from tests.kit.joined_edge import JoinBridge, Node
from tests.kit.operator import by_hand, hub_state, node_state
from tests.kit.requests import create
from tests.kit.vendor import Vendor
from tests.kit.waiting import wait_for


@pytest.fixture
def bridge(short_dir: Path, tmp_path: Path) -> Iterator[JoinBridge]:
    with JoinBridge(short_dir, tmp_path) as bridge:
        yield bridge


# -------------------- the join --------------------


def test_before_its_join_an_agent_says_how_to_join_and_after_it_needs_no_flag_of_the_link(bridge: JoinBridge) -> None:
    early = bridge.start_joined(bridge.node("n1"), wait=False)
    early.wait_logged("required, unless this node has joined: csi-bridge edge join")
    assert early.process.wait_exit() == 2
    bridge.start_hub()
    node = bridge.node("n1")
    done = node.join("csi1.AAAA")
    assert (done.returncode, "the token is damaged" in done.stderr) == (2, True)
    done = node.join(bridge.token("--node=n1"))
    assert (done.returncode, done.stderr) == (0, "")
    assert "node n1 has joined the hub at wss://" in done.stdout
    assert f"csi-bridge edge run --state-dir={node.state_dir}" in done.stdout
    agent = bridge.start_joined(node)
    agent.wait_connected()
    assert node_state(bridge.hub.uds, "n1")["connected"]
    found = by_hand("doctor", f"--status=unix://{agent.socket}").stdout
    assert f"{node.state_dir}/identity/node.pem is valid until " in found


def test_a_join_whose_answer_was_lost_is_repeated_with_the_same_token(bridge: JoinBridge) -> None:
    hub = bridge.start_hub()
    token, node = bridge.token("--node=n1"), bridge.node("n1")
    Identity(node.state_dir).request(parse_token(token).id)
    lost = node.state_dir.with_name("lost")
    shutil.copytree(node.state_dir, lost)  # as it is while the answer is on its way
    assert node.join(token).returncode == 0
    again = replace(node, state_dir=lost)
    assert again.join(token).returncode == 0
    certificate = Identity(lost).files.cert.read_bytes()
    assert certificate == Identity(node.state_dir).files.cert.read_bytes()
    assert len(hub.logged("node n1 joined")) == 1


def test_a_used_token_lets_no_second_node_join_nor_a_state_directory_take_another_name(bridge: JoinBridge) -> None:
    hub = bridge.start_hub("--hub-address=wss://hub.example:443", "--hub-address=wss://b.example:443")
    token, node, other = bridge.token(), bridge.node("n1"), bridge.node("n2")
    assert "has joined the hub at wss://hub.example:443, wss://b.example:443\n" in node.join(token).stdout
    done = other.join(token)
    assert done.returncode == 1
    assert "node n2 has not joined: " in done.stderr
    assert Identity(other.state_dir).joined() is None
    assert token[10:] not in hub.process.output() + done.stdout + done.stderr
    renamed = node.join(bridge.token(), "--node=n2")
    assert renamed.returncode == 1
    assert "has joined as n1" in renamed.stderr


# -------------------- renewals --------------------


class Load:
    """Sidecars that call without a pause, until they are stopped. Quick calls and slow ones."""

    def __init__(self, proxy: Proxy) -> None:
        self.codes: list[tuple[Code, str]] = []
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(proxy,)) for _ in range(4)]

    def _run(self, proxy: Proxy) -> None:
        with contextlib.closing(proxy.sidecar()) as sidecar:
            while not self._stopping.is_set():
                outcome = sidecar.call("GetCapacity", timeout_s=30.0)
                self.codes.append((Code.OK, "") if outcome.ok else outcome.refusal)

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()


@pytest.mark.slow
def test_a_node_renews_under_load_with_no_call_lost(bridge: JoinBridge, vendor: Vendor) -> None:
    bridge.start_hub("--cert-ttl=1m")
    node = bridge.node("n1")
    assert node.join(bridge.token("--node=n1")).returncode == 0
    agent = bridge.start_joined(node, vendor.socket)
    proxy = bridge.start_proxy("vendor.test")
    bridge.wait_routed(proxy.sidecar())
    gate = vendor.hold("CreateVolume")
    slow = proxy.sidecar().start("CreateVolume", create("v-1"), timeout_s=60.0)
    node.make_due()  # the agent looks every 20 s
    with Load(proxy) as load:
        agent.wait_logged("is up (", times=2)
        gate.set()  # the call began before the renewal, and ends after it
        assert slow.outcome().ok
        agent.wait_logged("the former link to the hub")
    assert {code for code, _ in load.codes} == {Code.OK}, load.codes
    assert len(load.codes) > 20
    assert node_state(bridge.hub.uds, "n1")["connected"]


def end(node: Node, bridge: JoinBridge) -> None:
    """Replace the certificate of a node by one of the same key and names that has ended."""
    path = Identity(node.state_dir).files.cert
    key, begin, certificate = path.read_bytes().partition(b"-----BEGIN CERTIFICATE-----")
    path.write_bytes(key + bridge.authority.sign_again(begin + certificate, lifetime_s=-1.0))


def test_a_node_that_was_away_past_its_certificates_end_says_that_it_renews_and_comes_back_by_itself(
    bridge: JoinBridge,
) -> None:
    hub = bridge.start_hub()
    node = bridge.node("n1")
    assert node.join(bridge.token("--node=n1")).returncode == 0
    hub.stop()
    end(node, bridge)
    agent = bridge.start_joined(node)
    found = by_hand("doctor", f"--status=unix://{agent.socket}").stdout
    assert "node.pem has expired at " in found
    assert "the agent renews it by itself when the hub answers" in found
    hub.start()
    agent.wait_connected()
    assert Identity(node.state_dir).term().ends_at > time.time()
    assert hub.logged("renewed its certificate")


def test_a_hub_without_a_ca_key_says_so_at_a_join_and_at_a_renewal_and_the_agents_link_stays(
    bridge: JoinBridge,
) -> None:
    hub = bridge.start_hub("--cert-ttl=1m")
    node, late = bridge.node("n1"), bridge.node("n2")
    assert node.join(bridge.token("--node=n1")).returncode == 0
    token = bridge.token("--node=n2")
    hub.stop()
    hub.process.command = [word for word in hub.process.command if not word.startswith("--ca-key=")]
    hub.start()
    refused = late.join(token)
    assert refused.returncode == 1
    assert "the hub signs no certificates (it runs without --ca-key); give the agent its files" in refused.stderr
    node.make_due()
    agent = bridge.start_joined(node)
    wait_for(
        lambda: any("the hub signs no certificates" in problem for problem in agent.status()["problems"]),
        what="problem",
        instead=agent.process.log_tail,
    )
    (problem,) = agent.status()["problems"]
    assert problem.startswith("this node's certificate, valid until ")
    assert ", cannot be renewed: the hub signs no certificates (it runs without --ca-key)" in problem
    assert agent.status()["connected"]


def put(new: Pem, at: Pem) -> None:
    """Replace the files of a certificate and its key."""
    shutil.copy(new.cert, at.cert)
    shutil.copy(new.key, at.key)


@pytest.mark.slow
def test_agent_and_proxy_driver_move_to_new_certificate_files_under_load_with_no_call_lost(
    bridge: JoinBridge, vendor: Vendor
) -> None:
    hub = bridge.start_hub()
    address = f"wss://{hub.address}"
    of_node, of_driver = bridge.authority.edge("n1"), bridge.authority.driver("vendor.test")
    agent = bridge.start_agent("n1", vendor.socket, flags=[f"--hub={address}", *of_node.flags])
    proxy = bridge.start_proxy("vendor.test", f"--hub-endpoint={address}", *of_driver.flags)
    bridge.wait_routed(proxy.sidecar())
    with Load(proxy) as load:
        put(bridge.authority.edge("n1"), of_node)
        agent.wait_logged("the former link to the hub")
        put(bridge.authority.driver("vendor.test"), of_driver)
        proxy.wait_logged("the former link to the hub")
    assert {code for code, _ in load.codes} == {Code.OK}, load.codes
    assert node_state(hub.uds, "n1")["connected"]


@pytest.mark.slow
def test_a_node_that_joins_again_beside_its_running_agent_moves_to_the_new_certificate(bridge: JoinBridge) -> None:
    hub = bridge.start_hub()
    node = bridge.node("n1")
    assert node.join(bridge.token("--node=n1")).returncode == 0
    agent = bridge.start_joined(node)
    agent.wait_connected()
    assert node.join(bridge.token("--node=n1", "--replace")).returncode == 0
    agent.wait_logged("the former link to the hub")
    assert hub.logged("generation 2 of the certificate of node n1 is in use")
    assert problems(hub.uds) == ""


# -------------------- copies and denials --------------------


def test_a_copy_of_the_state_directory_is_refused_and_shown_once_the_node_has_renewed(bridge: JoinBridge) -> None:
    hub = bridge.start_hub("--cert-ttl=1m")
    node = bridge.node("n1")
    assert node.join(bridge.token("--node=n1")).returncode == 0
    copy = bridge.node("n1")
    shutil.copytree(node.state_dir, copy.state_dir)
    node.make_due()
    agent = bridge.start_joined(node)
    agent.wait_logged("is up (", times=2)
    thief = bridge.start_joined(copy)
    hub.wait_logged("a replaced certificate of edge node n1 appeared")
    assert not thief.status()["connected"]
    assert agent.status()["connected"]
    assert "a replaced certificate of edge node n1" in problems(hub.uds)
    thief.kill()
    bridge.operate("allow", "n1")
    assert problems(hub.uds) == ""


def restart(agent: Agent) -> None:
    """Start an agent again, which dials at once."""
    agent.kill()
    agent.start()


def problems(uds: Path) -> str:
    return " ".join(hub_state(uds)["problems"])


def test_a_denied_node_is_gone_within_a_second_and_does_not_come_back(bridge: JoinBridge) -> None:
    bridge.start_hub()
    node = bridge.node("n1")
    assert node.join(bridge.token("--node=n1")).returncode == 0
    agent = bridge.start_joined(node)
    agent.wait_connected()
    bridge.operate("deny", "n1")
    began = time.monotonic()
    agent.wait_connected(connected=False)
    assert time.monotonic() - began < 1.0
    agent.wait_logged("the hub denies edge n1")
    assert not node_state(bridge.hub.uds, "n1")["connected"]
    assert node.join(bridge.token("--node=n1", "--replace")).returncode == 1
    bridge.operate("allow", "n1")
    restart(agent)
    agent.wait_logged("has replaced this one")
    assert node.join(bridge.token("--node=n1", "--replace")).returncode == 0
    restart(agent)
    agent.wait_connected()
