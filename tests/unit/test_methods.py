"""Which paths the bridge carries, and which of them a proxy driver may."""

import pytest

from common.csi.methods import METHODS, is_controller_side, is_csi


@pytest.mark.parametrize("path", [*METHODS, "/csi.v1.Controller/Imagined", "/csi.v1.Invented/Method"])
def test_whatever_is_csi_is_carried_known_or_not(path: str) -> None:
    assert is_csi(path)


@pytest.mark.parametrize(
    "path", ["", "/", "CreateVolume", "/csi.v0.Controller/CreateVolume", "/grpc.health.v1.Health/Check"]
)
def test_what_is_not_csi_is_not_carried(path: str) -> None:
    assert not is_csi(path)
    assert not is_controller_side(path)


@pytest.mark.parametrize("path", [*METHODS, "/csi.v1.Node/Imagined", "/csi.v1.Controller/Imagined"])
def test_of_the_node_service_a_proxy_driver_carries_the_question_for_capabilities_alone(path: str) -> None:
    of_a_node = path.startswith("/csi.v1.Node/") and path != "/csi.v1.Node/NodeGetCapabilities"
    assert is_controller_side(path) is not of_a_node
