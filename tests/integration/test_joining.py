"""An operation at the edge runs once: retries join it, callers that leave do not stop it, and a lost answer is kept.

docs/csi-contract.md#a-timeout-is-not-a-cancel and docs/csi-contract.md#when-two-calls-are-one-operation have the rules.
Any other call is passed through, and so is its cancel.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from google.protobuf.message import Message

from common.status import Code
from tests.kit.answers import volume
from tests.kit.bridge import Agent, Bridge, Proxy
from tests.kit.requests import create
from tests.kit.sidecar import Pending, Sidecar
from tests.kit.vendor import Vendor, VendorCall
from tests.kit.waiting import wait_for
from tests.lab.remote import RemoteLink


@dataclass
class Edge:
    """A bridge with a link that can be cut, and an agent that logs whether it joined a call to an operation."""

    bridge: Bridge
    vendor: Vendor
    link: RemoteLink
    agent: Agent
    proxy: Proxy
    sidecar: Sidecar

    def wait_idle(self) -> None:
        """Wait until no operation is under way: a retry would join it."""
        wait_for(lambda: not self.agent.status()["operations"], what="end of the operation")

    def started(self, method: str, request: Message, *, timeout_s: float | None = None) -> Pending:
        number = len(self.vendor.calls(method)) + 1
        call = self.sidecar.start(method, request, timeout_s=timeout_s)
        self.vendor.wait_for_call(method, number)
        return call


@pytest.fixture(scope="module")
def edge(module_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Edge]:
    with (
        Vendor(module_dir / "vendor.sock") as vendor,
        Bridge(module_dir, tmp_path_factory.mktemp("logs")) as bridge,
    ):
        bridge.start_hub()
        link = bridge.start_link()
        agent = bridge.start_agent("n1", vendor.socket, through=link.address, flags=["--log-level=debug"])
        proxy = bridge.start_proxy("vendor.test")
        sidecar = proxy.sidecar()
        bridge.wait_routed(sidecar)
        yield Edge(bridge, vendor, link, agent, proxy, sidecar)


@pytest.fixture
def creates(edge: Edge) -> Callable[[], int]:
    """Counts the vendor's CreateVolume calls since the test began."""
    before = len(edge.vendor.calls("CreateVolume"))
    return lambda: len(edge.vendor.calls("CreateVolume")) - before


# -------------------- joining --------------------


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({}, {}),
        ({"secrets": {"password": "old"}}, {"secrets": {"password": "new", "user": "me"}}),
        ({"parameters": {"a": "1", "b": "2"}}, {"parameters": {"b": "2", "a": "1"}}),
    ],
    ids=["equal", "other-secrets", "other-order"],
)
def test_a_retry_joins_the_operation_that_runs(
    edge: Edge, creates: Callable[[], int], name: str, first: dict[str, object], second: dict[str, object]
) -> None:
    gate = edge.vendor.hold("CreateVolume")
    callers = [edge.started("CreateVolume", create(name, **first))]
    callers += [edge.sidecar.start("CreateVolume", create(name, **second)) for _ in range(2)]
    edge.agent.wait_logged(f"a retry joins CreateVolume {name}", times=2)
    gate.set()
    edge.vendor.as_usual("CreateVolume")
    assert [caller.outcome().answer for caller in callers] == [volume(name)] * 3
    assert creates() == 1


# -------------------- callers that leave --------------------


def test_a_callers_deadline_does_not_cancel_the_operation_and_its_retry_joins(
    edge: Edge, creates: Callable[[], int], name: str
) -> None:
    gate = edge.vendor.hold("CreateVolume")
    call = edge.started("CreateVolume", create(name), timeout_s=3.0)
    assert call.outcome().code is Code.DEADLINE_EXCEEDED
    retry = edge.sidecar.start("CreateVolume", create(name))
    edge.agent.wait_logged(f"a retry joins CreateVolume {name}")
    gate.set()
    edge.vendor.as_usual("CreateVolume")
    assert retry.outcome().answer == volume(name)
    assert creates() == 1


@pytest.mark.parametrize("leave", ["cancel", "hang-up"])
def test_a_caller_that_leaves_does_not_cancel_the_operation_and_the_result_waits_for_the_retry(
    edge: Edge, creates: Callable[[], int], name: str, leave: str
) -> None:
    gate = edge.vendor.hold("CreateVolume")
    left = len(edge.bridge.hub.logged("the caller did not wait"))
    with edge.proxy.sidecar() as sidecar:
        call = sidecar.start("CreateVolume", create(name))
        wait_for(lambda: creates() == 1, what="call at the vendor")
        if leave == "cancel":
            call.cancel()
            assert call.outcome().code is Code.CANCELLED
    edge.bridge.hub.wait_logged("the caller did not wait", times=left + 1)
    gate.set()
    edge.vendor.as_usual("CreateVolume")
    edge.wait_idle()
    assert not edge.vendor.calls("CreateVolume")[-1].cancelled
    assert edge.sidecar.call("CreateVolume", create(name)).answer == volume(name)
    assert creates() == 1


@pytest.mark.parametrize("leave", ["cancel", "deadline"])
@pytest.mark.parametrize("method", ["ListVolumes", "/csi.v1.Controller/Invented"])
def test_a_read_or_an_unknown_method_is_cancelled_at_the_vendor_when_its_caller_leaves(
    edge: Edge, method: str, leave: str
) -> None:
    gate = edge.vendor.gate()

    def script(call: VendorCall) -> bytes:
        gate.wait()
        return b""

    edge.vendor.on(method, script)
    number = len(edge.vendor.calls(method)) + 1
    request = b"" if method.startswith("/") else None
    call = edge.sidecar.start(method, request, timeout_s=3.0 if leave == "deadline" else None)
    at_vendor = edge.vendor.wait_for_call(method, number)
    if leave == "cancel":
        call.cancel()
    wait_for(lambda: at_vendor.cancelled, what="cancel at the vendor")
    gate.set()
    edge.vendor.as_usual(method)


# -------------------- kept answers --------------------


def test_an_answer_lost_with_the_link_is_replayed_to_the_retry_and_only_once(
    edge: Edge, creates: Callable[[], int], name: str
) -> None:
    ups = len(edge.bridge.hub.logged("edge n1 is connected"))
    gate = edge.vendor.hold("CreateVolume")
    call = edge.started("CreateVolume", create(name))
    edge.link.command("cut")
    assert call.outcome().code is Code.UNAVAILABLE
    edge.link.command("heal")
    gate.set()
    edge.vendor.as_usual("CreateVolume")
    edge.bridge.hub.wait_logged("edge n1 is connected", times=ups + 1)
    edge.wait_idle()
    assert edge.sidecar.call("CreateVolume", create(name)).answer == volume(name)
    assert creates() == 1
    assert edge.sidecar.call("CreateVolume", create(name)).answer == volume(name)
    assert creates() == 2
