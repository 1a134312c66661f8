"""Direct volumes beside a kubelet, with a real agent and driver, and stand-ins for the kubelet and the guest."""

import errno
import json
import os
import shutil
import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.csi import csi_pb2 as csi
from common.csi.volume_context import DIRECT_VOLUME
from common.status import Code
from tests.kit.edge_node import DRIVER, csi_driver, volume
from tests.kit.fake_shim import FakeShim
from tests.kit.guest import SANDBOX, folder, mount_info
from tests.kit.needs import needs_loops
from tests.kit.relaying_node import RelayingNode
from tests.kit.sidecar import Sidecar
from tests.kit.vendor import Vendor, VendorCall
from tests.kit.waiting import wait_for

pytestmark = needs_loops

MIB = 1 << 20


@pytest.fixture(scope="module")
def node(module_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayingNode]:
    """A node that the tests of this module share: each takes its volumes away."""
    with RelayingNode(module_dir, tmp_path_factory.mktemp("logs")) as node:
        node.start()
        yield node


@pytest.fixture
def mine(short_dir: Path, tmp_path: Path) -> Iterator[RelayingNode]:
    with RelayingNode(short_dir, tmp_path) as node:
        node.start()
        yield node


def test_the_kubelets_calls_become_those_of_a_block_volume_and_the_guest_finds_its_data_again(
    node: RelayingNode,
) -> None:
    node.make("data", securityContext={"fsGroup": 4321})
    before = len(node.calls())
    target = node.mount("data")
    with pytest.raises(OSError, match="Read-only") as caught:
        (target / "file").touch()
    assert caught.value.errno == errno.EROFS
    info = mount_info(node.run_dir, target)
    assert stat.S_ISBLK(Path(info["device"]).stat().st_mode)
    assert (info["fstype"], [file.name for file in folder(node.run_dir, target).iterdir()]) == (
        "ext4", ["mountInfo.json"])  # fmt: skip
    assert node.host_mounts() == []
    with node.guest("data") as inside:
        (inside / "file").write_text("written by the guest")
    node.unmount("data")
    asked = node.calls()[before:]
    assert [call.method for call in asked] == [
        "NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume"]  # fmt: skip
    assert asked[1].fields["target_path"].startswith(str(node.layout.beside_kubelet))
    node.put("data", pod_name="again")
    node.mount("data", pod_name="again")
    with node.guest("again", "data") as inside:
        assert (inside / "file").read_text() == "written by the guest"
    node.unmount("data", pod_name="again")
    node.remove("data")


def test_a_volume_that_does_not_ask_is_the_drivers(node: RelayingNode) -> None:
    handle = node.make_volume("plain")
    target = node.layout.target("uid-of-plain", "pv-plain")
    staging = node.layout.staging_target("dirdriver.csi", handle)
    for place in (target.parent, staging):
        place.mkdir(parents=True)
    capability = csi.VolumeCapability(mount={}, access_mode={"mode": "SINGLE_NODE_WRITER"})
    ask = {"volume_id": handle, "staging_target_path": str(staging), "volume_capability": capability}
    assert node.call("NodeStageVolume", csi.NodeStageVolumeRequest(**ask)).ok
    assert node.call("NodePublishVolume", csi.NodePublishVolumeRequest(**ask, target_path=str(target))).ok
    assert node.calls()[-1].fields["target_path"] == str(target)
    assert node.rows() == []
    back = csi.NodeUnpublishVolumeRequest(volume_id=handle, target_path=str(target))
    assert node.call("NodeUnpublishVolume", back).ok
    back_too = csi.NodeUnstageVolumeRequest(volume_id=handle, staging_target_path=str(staging))
    assert node.call("NodeUnstageVolume", back_too).ok
    for place in (target.parent, *list(target.parents)[1:4]):
        place.rmdir()


def test_each_call_of_a_driver_that_knows_kata_reaches_it_as_bytes_and_its_own_mount_info_stays(
    short_dir: Path, tmp_path: Path
) -> None:
    name = "directvolume.csi.katacontainers.io"
    with (
        Vendor(short_dir / "kata.sock", name=name) as driver,
        RelayingNode(short_dir, tmp_path) as node,
        Sidecar(node.relay.with_name(f"{name}.sock")) as kubelet,
    ):
        node.start(f"--driver=unix://{driver.socket}")
        node.write(*volume("data", "h", source={"driver": name}), node.pod("data", "data"), file="data")
        wait_for(lambda: "Pod" in _kinds(node), what="the pod", instead=node.tell)
        wait_for(lambda: kubelet.call("Probe", timeout_s=5.0).ok, what="the relay", instead=node.tell)
        target = str(node.target("data"))
        place = folder(node.run_dir, node.target("data"))

        def publish(_call: VendorCall) -> csi.NodePublishVolumeResponse:
            place.mkdir(parents=True)
            (place / "mountInfo.json").write_text("the driver's")
            return csi.NodePublishVolumeResponse()

        driver.on("NodePublishVolume", publish)
        for request in (
            csi.NodeStageVolumeRequest(volume_id="h", staging_target_path="/s"),
            csi.NodePublishVolumeRequest(volume_id="h", target_path=target),
            csi.NodeGetVolumeStatsRequest(volume_id="h", volume_path=target),
            csi.NodeExpandVolumeRequest(volume_id="h", volume_path=target),
            csi.NodeUnpublishVolumeRequest(volume_id="h", target_path=target),
            csi.NodeUnstageVolumeRequest(volume_id="h", staging_target_path="/s"),
        ):
            method = type(request).__name__.removesuffix("Request")
            sent = request.SerializeToString() + b"\xf2\x3f\x03new"  # field 1022, which this contract does not know
            assert kubelet.call(method, sent).ok
            assert [call.data for call in driver.calls(method)] == [sent]
        assert (place / "mountInfo.json").read_text() == "the driver's"
        assert (node.rows(), node.mounts()) == ([], [])


def test_a_pod_that_asks_by_its_annotation_is_no_silent_way_to_an_ordinary_mount(node: RelayingNode) -> None:
    node.handles["named"] = node.make_volume("named")
    pod = node.pod("named", "named")
    pod["metadata"]["annotations"] = {"csi-bridge.io/direct-volumes": "v-named"}
    driver = csi_driver()
    driver["metadata"]["annotations"] = {"csi-bridge.io/direct-volumes": "true"}
    node.write(driver, *volume("named", node.handles["named"]), pod, file="driver")
    request = csi.NodePublishVolumeRequest(volume_id=node.handles["named"], target_path=str(node.target("named")))
    before = len(node.calls())
    told = wait_for(
        lambda: (it := node.call("NodePublishVolume", request)).code is Code.FAILED_PRECONDITION and it,
        what="the refusal", instead=node.tell,
    )  # fmt: skip
    assert "beside a kubelet, the volume's own attribute csi-bridge.io/direct-volume has to ask" in told.message
    assert [call.code for call in node.calls()[before:] if call.code == "OK"] == []
    node.write(csi_driver(), file="driver")


def test_a_second_publication_a_restart_of_the_agent_and_a_lost_hub_call_no_driver(mine: RelayingNode) -> None:
    mine.make("data")
    mine.mount("data")
    before = len(mine.calls())
    mine.bridge.hub.kill()
    for _ in range(2):
        assert mine.stage("data").ok
        assert mine.publish("data").ok
        mine.agent.kill()
        mine.restart_agent()
        mine.wait_told()
    assert len(mine.calls()) == before
    with mine.guest("data") as inside:
        (inside / "file").write_text("it runs")
    mine.unmount("data")


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"runtimeClassName": ""}, "the pod has no runtimeClassName"),
        ({"runtimeClassName": "gvisor"}, "the agent was not started with --direct-runtime=gvisor=…"),
        ({"volume": {"mode": "ReadWriteMany"}}, "several nodes may use it at once"),
        ({"runtimeClassName": "kata-rs", "securityContext": {"fsGroup": 7}}, "the pod has an fsGroup"),
        ({"sub_path": "part"}, "a container uses a subPath of it"),
    ],
)
def test_what_is_refused_calls_no_driver_and_the_kubelet_hears_why(
    node: RelayingNode, spec: dict[str, object], why: str
) -> None:
    sub_path = spec.pop("sub_path", None) if "sub_path" in (spec := dict(spec)) else None
    node.handles["refused"] = node.make_volume("refused", size_bytes=32 << 20, block=True)
    objects = node.objects("refused", **spec.pop("volume", {}))  # type: ignore[arg-type]  # the fields of a volume
    pod = node.pod("refused", "refused", **spec)
    if sub_path:
        pod["spec"]["containers"][0]["volumeMounts"][0]["subPath"] = sub_path
    if "fsGroup" in str(spec):
        objects[0]["spec"]["csi"]["fsType"] = "ext4"
    before = len(node.calls())
    node.write(*objects, pod, file="refused")
    said = wait_for(
        lambda: (it := node.stage("refused")) and why in it.message and it,
        what=why,
        instead=lambda: str(node.stage("refused")),
    )
    assert said.code is Code.FAILED_PRECONDITION
    assert node.publish("refused").code is Code.FAILED_PRECONDITION
    assert len(node.calls()) == before
    assert node.rows() == []
    node.remove("refused")


def test_a_pod_of_which_the_hub_has_not_told_waits(node: RelayingNode) -> None:
    node.handles["later"] = node.make_volume("later", size_bytes=32 << 20, block=True)
    refused = node.stage("later")
    assert (refused.code, "no pod that may have direct volume" in refused.message) == (Code.FAILED_PRECONDITION, True)
    node.put("later")
    node.mount("later")
    node.unmount("later")
    node.remove("later")


def test_a_second_pod_is_refused_while_the_first_one_has_the_volume(node: RelayingNode) -> None:
    node.make("data")
    node.mount("data")
    second = node.pod("second", "data")
    node.write(*node.objects("data"), node.pod("data", "data"), second, file="data")
    why = "is in use by another pod, default/data"
    wait_for(lambda: why in node.publish("data", pod_name="second").message, what=why)
    assert node.publish("data", pod_name="second").code is Code.FAILED_PRECONDITION
    assert node.unstage("data").code is Code.UNAVAILABLE
    assert node.unpublish("data").ok
    node.mount("data", pod_name="second")
    node.unmount("data", pod_name="second")
    node.remove("data")


def test_a_pod_of_which_the_kubelet_has_lost_everything_keeps_the_volume_from_no_other(node: RelayingNode) -> None:
    node.make("lost")
    target = node.mount("lost")
    node.put("lost", pod_name="next")
    why = "is in use by another pod, default/lost"
    wait_for(lambda: why in node.publish("lost", pod_name="next").message, what=why, instead=node.tell)
    subprocess.run(["umount", target], check=True)
    shutil.rmtree(node.layout.pods)
    node.mount("lost", pod_name="next")
    assert node.told() == [folder(node.run_dir, node.target("next", "lost")).name]
    node.unmount("lost", pod_name="next")
    node.remove("lost")


def test_the_work_goes_on_without_its_caller_and_a_retry_waits_for_its_end(node: RelayingNode) -> None:
    node.make("slow")
    node.again(lambda: node.stage("slow"))
    before = len(node.calls())
    node.driver.set_faults("NodePublishVolume=delay:3s")
    assert not node.publish("slow", timeout_s=1.0).ok
    assert node.publish("slow").ok
    node.driver.set_faults()
    assert [(call.method, call.code) for call in node.calls()[before:]] == [("NodePublishVolume", "OK")]
    node.unmount("slow")
    node.remove("slow")


def test_a_volume_is_not_taken_back_while_its_guest_runs_and_tells_its_usage(node: RelayingNode) -> None:
    node.make("data")
    target = node.mount("data")
    refused = node.stats("data")
    assert (refused.code, "the usage of volume" in refused.message) == (Code.UNAVAILABLE, True)
    with node.guest("data"), FakeShim(node.run_dir / "vc/sbs", SANDBOX) as shim:
        usage = [{"available": 900, "total": 1000, "used": 100, "unit": 1}, {"available": 65, "total": 65, "unit": 2}]
        shim.usage = {mount_info(node.run_dir, target)["device"]: {"usage": usage}}
        told = node.stats("data").answer.usage
        assert [(it.unit, it.available, it.total, it.used) for it in told] == [(1, 900, 1000, 100), (2, 65, 65, 0)]
        refused = node.unpublish("data")
        assert (refused.code, f"sandbox {SANDBOX} still uses" in refused.message) == (Code.UNAVAILABLE, True)
    node.unmount("data")
    node.remove("data")


def test_a_device_grows_at_once_and_its_file_system_at_the_next_publication(node: RelayingNode) -> None:
    node.make("data")
    node.mount("data")
    node.grow("data", 64 * MIB)
    told = node.expand("data", 64 * MIB)
    assert told.code is Code.FAILED_PRECONDITION
    assert "has grown, and its file system has not: the runtime (kata, go) cannot grow it now" in told.message
    assert node.unpublish("data").ok
    node.mount("data")
    told = node.expand("data", 64 * MIB)
    assert (told.ok, told.answer.capacity_bytes) == (True, 64 * MIB)
    with node.guest("data") as inside:
        assert _size_bytes(inside) > 50 * MIB
    node.unmount("data")
    node.remove("data")


def test_a_claim_that_is_smaller_than_its_volume_is_grown_before_the_handover(node: RelayingNode) -> None:
    node.handles["data"] = node.make_volume("data", size_bytes=32 << 20, block=True)
    node.grow("data", 64 * MIB)
    objects = node.objects("data", size="64Mi")
    objects[1]["status"] = {"capacity": {"storage": "32Mi"}}
    node.write(*objects, node.pod("data", "data"), file="data")
    node.mount("data")
    assert node.expand("data", 64 * MIB).ok
    node.unmount("data")
    node.remove("data")


def test_a_claim_with_a_secret_for_expansion_grows_one_pod_later(node: RelayingNode) -> None:
    node.handles["locked"] = node.make_volume("locked", size_bytes=32 << 20, block=True)
    objects = node.objects("locked", size="64Mi")
    objects[0]["spec"]["csi"]["nodeExpandSecretRef"] = {"name": "key", "namespace": "default"}
    objects[1]["status"] = {"capacity": {"storage": "32Mi"}}
    node.write(*objects, node.pod("locked", "locked"), file="locked")
    before = len(node.calls())
    node.again(lambda: node.stage("locked"))
    node.grow("locked", 64 * MIB)  # the staged device keeps its size until the driver's NodeExpandVolume
    node.again(lambda: node.publish("locked"))
    assert [call.method for call in node.calls()[before:]] == ["NodeStageVolume", "NodePublishVolume"]
    told = node.expand("locked", 64 * MIB, password="hunter2")
    assert told.code is Code.FAILED_PRECONDITION
    assert "it grows when a pod next gets the volume" in told.message
    with node.guest("locked") as inside:
        assert _size_bytes(inside) <= 32 * MIB
    assert node.unpublish("locked").ok
    node.mount("locked")
    assert node.expand("locked", 64 * MIB, password="hunter2").ok
    with node.guest("locked") as inside:
        assert _size_bytes(inside) > 50 * MIB
    node.unmount("locked")
    node.remove("locked")


def _size_bytes(inside: Path) -> int:
    found = os.statvfs(inside)
    return found.f_blocks * found.f_frsize


def test_after_a_reboot_the_kubelet_gets_the_volume_again_with_its_data_and_no_other(
    short_dir: Path, tmp_path: Path
) -> None:
    with RelayingNode(short_dir, tmp_path, reboots=True) as node:
        node.start()
        node.make("data")
        node.mount("data")
        with node.guest("data") as inside:
            (node.seen(inside) / "file").write_text("from before")
        before = mount_info(node.run_dir, node.target("data"))
        node.power_off()
        shutil.rmtree(node.run_dir)
        node.boot()
        node.wait_told()
        calls = len(node.calls())
        node.mount("data")
        assert [call.method for call in node.calls()[calls:]] == ["NodeStageVolume", "NodePublishVolume"]
        assert mount_info(node.run_dir, node.target("data")) | {"device": ""} == before | {"device": ""}
        with node.guest("data") as inside:
            assert (node.seen(inside) / "file").read_text() == "from before"
        node.unmount("data")


def test_without_the_flag_the_agent_takes_back_what_it_has_and_hands_nothing_over(mine: RelayingNode) -> None:
    mine.make("data")
    mine.mount("data")
    mine.agent.kill()
    mine.drop_flags("--direct-runtime")
    mine.restart_agent()
    mine.wait_told()
    assert mine.publish("data").ok
    mine.unmount("data")
    refused = mine.stage("data")
    assert "the agent was not started with --direct-runtime=kata=…" in refused.message


def test_an_agent_that_has_lost_its_record_takes_back_what_the_disk_shows(mine: RelayingNode) -> None:
    mine.make("data")
    mine.mount("data")
    mine.agent.kill()
    (mine.state_dir / "volumes.db").unlink()
    mine.restart_agent()
    mine.wait_told()
    mine.unmount("data")


def test_the_agent_gets_no_secret_of_the_pods(mine: RelayingNode) -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "key", "namespace": "default"},
              "stringData": {"password": "hunter2"}}  # fmt: skip
    mine.handles["data"] = mine.make_volume("data", size_bytes=32 << 20, block=True)
    objects = mine.objects("data")
    objects[0]["spec"]["csi"]["nodeStageSecretRef"] = {"name": "key", "namespace": "default"}
    mine.write(secret, *objects, mine.pod("data", "data"), file="data")
    mine.mount("data")
    assert _kinds(mine) == {"CSIDriver", "Node", "PersistentVolume", "PersistentVolumeClaim", "Pod"}
    mine.unmount("data")


def _kinds(node: RelayingNode) -> set[str]:
    import sqlite3  # noqa: PLC0415

    with sqlite3.connect(node.state_dir / "edge.db") as database:
        return {kind for (kind,) in database.execute("SELECT DISTINCT kind FROM objects")}


def test_a_driver_that_refuses_a_repetition_is_still_asked_to_undo_what_it_has_done(node: RelayingNode) -> None:
    node.make("data")
    assert node.again(lambda: node.stage("data")).ok
    for _ in range(2):
        node.driver.set_faults("NodeStageVolume=error:INVALID_ARGUMENT:not now")
        assert node.stage("data").code is Code.UNAVAILABLE
        node.driver.set_faults()
    before = len(node.calls())
    assert node.unstage("data").ok
    (asked,) = node.calls()[before:]
    assert asked.fields["staging_target_path"].startswith(str(node.layout.beside_kubelet))
    node.mount("data")
    with node.guest("data"), FakeShim(node.run_dir / "vc/sbs", SANDBOX):
        assert node.unpublish("data").code is Code.UNAVAILABLE
        node.driver.set_faults("NodePublishVolume=error:INVALID_ARGUMENT:not now")
        assert node.publish("data").code is Code.UNAVAILABLE
        node.driver.set_faults()
    node.unmount("data")
    node.remove("data")


def test_a_volume_that_was_mounted_before_the_flag_stays_the_drivers_and_no_guest_gets_it(node: RelayingNode) -> None:
    node.handles["data"] = handle = node.make_volume("mounted")
    node.write(*node.objects("data"), node.pod("data", "data"), node.pod("second", "data"), file="data")
    staging = node.staging("data")
    target = node.target("data")
    for place in (staging, target.parent):
        place.mkdir(parents=True)
    capability = csi.VolumeCapability(mount={}, access_mode={"mode": "SINGLE_NODE_WRITER"})
    ask = {"volume_id": handle, "staging_target_path": str(staging), "volume_capability": capability,
           "volume_context": {DIRECT_VOLUME: "true"}}  # fmt: skip
    stage = csi.NodeStageVolumeRequest(**ask)
    publish = csi.NodePublishVolumeRequest(**ask, target_path=str(target))
    with Sidecar(node.driver.socket) as driver:
        assert driver.call("NodeStageVolume", stage).ok
        assert driver.call("NodePublishVolume", publish).ok
    # A kubelet that has restarted calls again.
    assert node.call("NodeStageVolume", stage).ok
    assert node.call("NodePublishVolume", publish).ok
    why = f"is mounted on the host, at {target}; delete the pods that have it"
    wait_for(lambda: why in node.publish("data", pod_name="second").message, what=why)
    assert (node.rows(), node.told()) == ([], [])
    assert node.call(
        "NodeUnpublishVolume", csi.NodeUnpublishVolumeRequest(volume_id=handle, target_path=str(target))
    ).ok
    assert node.unstage("data").ok
    for place in (target.parent, *list(target.parents)[1:4]):
        place.rmdir()
    node.remove("data")


def test_a_driver_that_stages_nothing_leaves_no_row_of_a_staging(short_dir: Path, tmp_path: Path) -> None:
    with RelayingNode(short_dir, tmp_path) as node:
        node.start(driver_flags=("--no-attach", "--no-stage"))
        node.make("data")
        node.again(lambda: node.publish("data"))
        assert node.again(lambda: node.unpublish("data")).ok
        assert node.left_over() == []
        node.driver.set_faults("NodePublishVolume=error:FAILED_PRECONDITION:not now")
        assert node.publish("data").code is Code.FAILED_PRECONDITION
        assert node.rows() == []
        node.driver.set_faults()
        node.agent.kill()
        node.restart_agent(fault_point="unpublish.after-result")
        node.again(lambda: node.publish("data"))
        node.again(lambda: node.unpublish("data"))
        assert (node.deaths, node.left_over()) == (1, [])


def test_a_volume_waits_for_the_place_of_an_earlier_one_with_the_same_name(node: RelayingNode) -> None:
    node.make("data")
    node.mount("data")
    earlier = node.handles["data"]
    later = node.handles["data"] = node.make_volume("later", size_bytes=32 << 20, block=True)
    node.put("data")
    why = f"another volume is still mounted in the place of pv-data: kubernetes.io/csi/{DRIVER}^{earlier}"
    wait_for(lambda: why in node.stage("data").message, what=why, instead=lambda: str(node.stage("data")))
    node.handles["data"] = earlier
    node.unmount("data")
    node.handles["data"] = later
    node.mount("data")
    node.unmount("data")
    node.remove("data")


def test_the_data_of_a_killed_drivers_node_plugin_is_there_again(mine: RelayingNode) -> None:
    mine.make("data")
    mine.mount("data")
    mine.driver.process.signal(signal.SIGKILL)
    assert mine.publish("data").ok  # it has what it needs
    assert mine.unpublish("data").code is Code.UNAVAILABLE
    mine.start_driver()
    mine.unmount("data")
    assert json.dumps(mine.told()) == "[]"
