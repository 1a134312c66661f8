"""A claim names another VolumeAttributesClass: the stock resizer calls ControllerModifyVolume through the bridge."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.kit.forms import slow_in_hub
from tests.kit.peers import manifests
from tests.kit.peers.claims import Claims
from tests.kit.peers.kube_api import Object
from tests.kit.peers.sidecars import Sidecars
from tests.kit.peers.testdriver import RunningDriver
from tests.kit.peers.tunnel import Tunnel
from tests.kit.waiting import wait_for

pytestmark = slow_in_hub

_KIND = "PersistentVolumeClaim"

_FLAGS = ("--retry-interval-start=500ms", "--retry-interval-max=1s", "--timeout=30s")
"""The resizer's patience with a failure grows to 5 minutes by default."""

_CLASSES = {"silver": {"tier": "silver"}, "gold": {"tier": "gold"}, "odd": {"colour": "red"}}

_SLOW = "ControllerModifyVolume=delay:10s"
"""Longer than a busy machine stalls between the call's beginning and the blow to its link."""

_LIMIT_S = 90.0  # the agent dials again at least every 30 s, and the retry waits for the slow work


class Modified:
    """The claim `data`, bound to a volume without a class.

    The role that its project publishes for the provisioner does not let it read classes; that of deploy/ does.
    """

    def __init__(self, claims: Claims, vendor: RunningDriver) -> None:
        self._api, self._namespace, self._vendor = claims.api, claims.namespace, vendor
        claims.ask("data")
        self.volume = str(claims.wait_bound("data")["metadata"]["name"])

    def class_name(self, name: str) -> str:
        return f"{name}-{self._namespace}"

    def change(self, name: str) -> None:
        change = {"spec": {"volumeAttributesClassName": self.class_name(name)}}
        self._api.patch(_KIND, "data", change, namespace=self._namespace)

    def wait_modified(self, name: str) -> None:
        """Wait until the cluster says that the claim has a class, and check that its volume has it."""
        self._wait(
            lambda status: (
                status.get("currentVolumeAttributesClassName") == self.class_name(name)
                and "modifyVolumeStatus" not in status
            ),
            what=f"of class {name}",
        )
        volume = self._api.get("PersistentVolume", self.volume)
        assert volume is not None
        assert volume["spec"]["volumeAttributesClassName"] == self.class_name(name)
        assert self.parameters() == _CLASSES[name]

    def wait_error(self, reason: str) -> tuple[str, str]:
        """Wait for an error of a code. Returns the state that the resizer gives the claim for it, and its message."""

        def error(status: Object) -> Object:
            conditions = {it["type"]: it for it in status.get("conditions", [])}
            found: Object = conditions.get("ModifyVolumeError", {})
            return found if found.get("reason") == reason else {}

        status = self._wait(lambda status: bool(error(status)), what=f"with the error {reason}")
        return str(status["modifyVolumeStatus"]["status"]), str(error(status)["message"])

    def parameters(self) -> dict[str, str]:
        (told,) = json.loads((self._vendor.state / "state.json").read_text())["volumes"].values()
        parameters: dict[str, str] = told["mutable_parameters"]
        return parameters

    def _wait(self, condition: Callable[[Object], bool], *, what: str) -> Object:
        claim = self._api.wait_until(
            _KIND,
            "data",
            lambda it: condition(it["status"]),
            what=what,
            namespace=self._namespace,
            timeout_s=_LIMIT_S,
        )
        status: Object = claim["status"]
        return status


@pytest.fixture
def vendor(testdriver: Callable[..., RunningDriver], claims: Claims) -> RunningDriver:
    return testdriver(name=claims.storage_class, flags=("--no-topology", "--mutable-parameter=tier"))


@pytest.fixture
def tunnel(vendor: RunningDriver, tunnel_to: Callable[[Path, str], Tunnel], sidecars: Sidecars) -> Tunnel:
    """The bridge in front of it, with a provisioner and a resizer on the proxy driver's socket."""
    tunnel = tunnel_to(vendor.socket, vendor.name)
    for name in ("csi-provisioner", "csi-resizer"):
        sidecars.start(name, tunnel.socket, *_FLAGS)
    return tunnel


@pytest.fixture
def data(tunnel: Tunnel, vendor: RunningDriver, claims: Claims) -> Iterator[Modified]:
    assert tunnel.socket.exists()
    for name, parameters in _CLASSES.items():
        claims.api.create(manifests.attributes_class(f"{name}-{claims.namespace}", driver=vendor.name, **parameters))
    yield Modified(claims, vendor)
    claims.let_go("data")
    for name in _CLASSES:
        claims.api.delete("VolumeAttributesClass", f"{name}-{claims.namespace}")


def test_the_vendors_answers_decide_what_becomes_of_a_changed_class(data: Modified, vendor: RunningDriver) -> None:
    data.change("gold")
    data.wait_modified("gold")

    # INVALID_ARGUMENT alone makes the resizer give up until the claim is changed once more.
    data.change("odd")
    assert data.wait_error("InvalidArgument") == ("Infeasible", "mutable_parameters: colour cannot be modified")
    assert data.parameters() == _CLASSES["gold"]

    vendor.set_faults("ControllerModifyVolume=error:INTERNAL:the array is upside down")
    data.change("silver")
    assert data.wait_error("Internal") == ("InProgress", "the array is upside down")
    vendor.set_faults()
    data.wait_modified("silver")


@pytest.mark.parametrize("way", ["cut", pytest.param("silence", marks=pytest.mark.slow)])
def test_a_link_lost_under_the_call_leaves_the_modification_in_progress(
    way: str, data: Modified, tunnel: Tunnel, vendor: RunningDriver
) -> None:
    vendor.set_faults(_SLOW)
    data.change("gold")
    wait_for(
        lambda: vendor.calls("ControllerModifyVolume"),
        what="ControllerModifyVolume at the edge",
        instead=tunnel.log_tails,
    )

    (tunnel.cut if way == "cut" else tunnel.silence)()
    state, message = data.wait_error("Unavailable")
    assert state == "InProgress"
    assert "edge node edge-1" in message
    # The resizer does not know what became of the call. It brings that to its end first, whatever the claim says now.
    data.change("silver")
    tunnel.heal()

    data.wait_modified("silver")
    asked = vendor.calls("ControllerModifyVolume")
    assert {call.code for call in asked} == {"OK"}
    assert len(asked) >= 2
