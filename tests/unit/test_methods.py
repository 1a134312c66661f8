"""Which paths are CSI's, and which of them may be called from the cloud."""

import pytest

from common.csi.methods import METHODS, is_controller_side


@pytest.mark.parametrize(
    "path", ["", "/", "CreateVolume", "/csi.v0.Controller/CreateVolume", "/grpc.health.v1.Health/Check"]
)
def test_what_is_not_csi_is_not_carried(path: str) -> None:
    assert not is_controller_side(path)


@pytest.mark.parametrize("path", [*METHODS, "/csi.v1.Node/Imagined", "/csi.v1.Controller/Imagined"])
def test_of_the_node_service_only_the_capabilities_may_be_asked_from_the_cloud(path: str) -> None:
    of_a_node = path.startswith("/csi.v1.Node/") and path != "/csi.v1.Node/NodeGetCapabilities"
    assert is_controller_side(path) is not of_a_node


@pytest.mark.parametrize(
    "path",
    [
        "/csi.v1.Controller/../Node/NodePublishVolume",
        "/csi.v1.Node",
        "/csi.v1.",
        "/csi.v1./X",
        "/csi.v1.Node/NodeGetCapabilities\n",
        "/csi.v1.alpha.Node/NodePublishVolume",
        "/csi.v1.Nod\u0435/NodePublishVolume",
    ],
)
def test_a_path_that_no_service_can_have_may_not_be_called_from_the_cloud(path: str) -> None:
    assert not is_controller_side(path)
