"""Attack 1: a hub calls a driver's Node service, with paths of its own choice."""

from pathlib import Path

import pytest

from common.csi import csi_pb2 as csi
from common.status import Code
from tests.kit.hostile_hub import NODE_METHODS, attack

_NODE_GET_CAPABILITIES = "/csi.v1.Node/NodeGetCapabilities"
_FORBIDDEN = [method for method in NODE_METHODS if method != _NODE_GET_CAPABILITIES]

_ODD_PATHS = (
    "/csi.v1.Controller/../Node/NodePublishVolume",
    "/csi.v1./csi.v1.Node/NodePublishVolume",
    "/csi.v1.Node/NodePublishVolume ",
    "/csi.v1.Node/NodeGetCapabilities/../NodePublishVolume",
    "/csi.v1.Node",
    "/csi.v1.Node//NodePublishVolume",
    "/csi.v1.Nod\u0435/NodePublishVolume",
    "/csi.v1.Future/Do\r\nx: y",
    "/csi.v1.",
)
"""Names that a lenient server could take for the Node service, or for two lines of HTTP."""


@pytest.mark.parametrize("mode", ["own", "observe"])
async def test_a_hub_cannot_mount_outside_the_root_directory(short_dir: Path, tmp_path: Path, mode: str) -> None:
    async with attack(short_dir, tmp_path, f"--registration={mode}") as attacked:
        mount = csi.VolumeCapability(mount={}, access_mode={"mode": "SINGLE_NODE_WRITER"})
        staging, target = str(attacked.outside / "staging"), str(attacked.outside / "target")
        requests = {
            "NodeStageVolume": csi.NodeStageVolumeRequest(
                volume_id="v", staging_target_path=staging, volume_capability=mount
            ),
            "NodePublishVolume": csi.NodePublishVolumeRequest(
                volume_id="v", target_path=target, volume_capability=mount
            ),
        }
        for name, request in requests.items():
            method = f"/csi.v1.Node/{name}"
            status = await attacked.hub.call(method, request.SerializeToString(), driver="vendor.test")
            assert attacked.left_outside() == ["file"]
            assert attacked.vendor.calls(name) == []
            assert status.code == Code.UNIMPLEMENTED
            assert name in status.message


async def test_a_hub_reaches_no_method_of_the_node_service_but_its_capabilities(
    short_dir: Path, tmp_path: Path
) -> None:
    async with attack(short_dir, tmp_path, "--registration=observe") as attacked:
        for method in (*_FORBIDDEN, *_ODD_PATHS):
            before = len(attacked.vendor.calls(method))  # the agent itself asks for NodeGetInfo
            status = await attacked.hub.call(method, b"", driver="vendor.test")
            assert (method, status.code) == (method, Code.UNIMPLEMENTED)
            assert len(attacked.vendor.calls(method)) == before
        status = await attacked.hub.call(_NODE_GET_CAPABILITIES, b"", driver="vendor.test")
        assert status.code == Code.OK


async def test_a_hub_still_reaches_every_other_method_of_csi_and_of_its_future_services(
    short_dir: Path, tmp_path: Path
) -> None:
    methods = [
        "/csi.v1.Identity/Probe",
        "/csi.v1.Controller/ListVolumes",
        "/csi.v1.Controller/LaterMethod",
        "/csi.v1.GroupController/GroupControllerGetCapabilities",
        "/csi.v1.SnapshotMetadata/GetMetadataAllocated",
        "/csi.v1.Later_Service2/DoIt",
    ]
    async with attack(short_dir, tmp_path) as attacked:
        for method in methods:
            if "Later" in method:
                attacked.vendor.on(method, lambda _: b"")
            status = await attacked.hub.call(method, b"", driver="vendor.test")
            assert (method, status.code) == (method, Code.OK)
            assert attacked.vendor.calls(method)
