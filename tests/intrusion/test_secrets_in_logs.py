"""A reader of logs, pages and state directories finds no secret of a call, at the highest verbosity."""

from pathlib import Path

from common.csi import csi_pb2
from common.status import Code
from tests.kit.bridge import Bridge
from tests.kit.operator import by_hand
from tests.kit.requests import create
from tests.kit.vendor import Vendor
from tests.kit.waiting import wait_for

SECRET = "correct-horse-battery-staple"


def test_no_secret_of_a_call_is_in_a_log_a_page_or_a_file(bridge: Bridge, short_dir: Path) -> None:
    verbose = ("--log-level=debug", "--v=5")
    hub = bridge.start_hub(*verbose)
    with Vendor(short_dir / "vendor.sock") as vendor:
        agent = bridge.start_agent("n1", vendor.socket, flags=verbose)
        sidecar = bridge.start_proxy(vendor.identity.name, *verbose).sidecar()
        bridge.wait_routed(sidecar)
        request = create("pvc-1", secrets={"password": SECRET})
        assert sidecar.call("CreateVolume", request).ok
        assert vendor.calls("CreateVolume")[-1].request.secrets["password"] == SECRET
        vendor.refuse("DeleteVolume", Code.INTERNAL, "the backend is away")
        sidecar.call("DeleteVolume", csi_pb2.DeleteVolumeRequest(volume_id="x", secrets={"password": SECRET}))
        wait_for(lambda: agent.logged("the backend is away"), what="failed call in the log")
        shown = [
            by_hand(command, "--output=json", f"--hub=unix://{hub.uds}") for command in ("status", "nodes", "volumes")
        ]
        for one in shown:
            assert (one.returncode, one.stderr) == (0, "")
            assert SECRET not in one.stdout
    for member in bridge.members:
        assert SECRET not in member.process.output(), member.process.name
    files = [path for path in short_dir.rglob("*") if path.is_file()]
    assert files
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []
