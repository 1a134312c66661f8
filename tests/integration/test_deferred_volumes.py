"""Volumes that a pod's runtime mounts, with a real agent, a real driver with loop devices, and a stand-in guest."""

import errno
import os
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.kit.deferring_node import DeferringNode, asking
from tests.kit.edge_node import pod, volume
from tests.kit.guest import folder, mount_info
from tests.kit.needs import needs_loops
from tests.kit.operator import by_hand
from tests.kit.waiting import wait_for

pytestmark = needs_loops


@pytest.fixture(scope="module")
def node(module_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeferringNode]:
    """A node that the tests of this module share: each takes its volumes away."""
    with DeferringNode(module_dir, tmp_path_factory.mktemp("logs")) as node:
        node.start()
        yield node


def uuid_of(image: Path) -> str:
    told = subprocess.run(
        ["blkid", "-p", "-s", "UUID", "-o", "value", image], check=True, capture_output=True, text=True
    )
    return told.stdout.strip()


@pytest.mark.slow
def test_the_guest_gets_the_device_and_finds_its_data_again(node: DeferringNode) -> None:
    target = node.add("data", securityContext={"fsGroup": 4321})
    assert node.host_mounts() == []
    with pytest.raises(OSError, match="Read-only") as caught:
        (target / "file").touch()
    assert caught.value.errno == errno.EROFS
    info = mount_info(node.run_dir, target)
    assert stat.S_ISBLK(Path(info["device"]).stat().st_mode)
    assert info == {
        "volume-type": "directvol",
        "device": info["device"],
        "fstype": "ext4",
        "metadata": {"fsGroup": "4321", "fsGroupChangePolicy": "Always"},
    }
    assert [file.name for file in folder(node.run_dir, target).iterdir()] == ["mountInfo.json"]
    (shown,) = node.volumes("data")
    assert (shown["state"], shown["mode"], shown["runtime"]) == ("published", "Filesystem", "kata, go")
    told = by_hand("edge", "volumes", f"--status=unix://{node.agent.socket}").stdout
    assert "published, deferred to the runtime (kata, go)" in told
    with node.guest("data") as inside:
        (inside / "file").write_text("written by the guest")
        assert inside.stat().st_gid == 4321
    first = uuid_of(node.image("data"))
    node.end("data")
    node.put("data", pod_name="again")
    node.wait_published("again")
    with node.guest("again") as inside:
        assert (inside / "file").read_text() == "written by the guest"
    assert uuid_of(node.image("data")) == first
    node.end("data", pod_name="again")


def test_the_runtime_knows_a_volume_by_its_path_without_symbolic_links(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="csi-") as directory, DeferringNode(Path(directory), tmp_path) as node:
        real = Path(directory, "real")
        real.mkdir()
        node.root.symlink_to(real)
        node.start()
        target = node.add("data")
        assert target.is_relative_to(node.root)
        assert node.told() == [folder(node.run_dir, real / target.relative_to(node.root)).name]
        with node.guest("data") as inside:
            (inside / "file").write_text("hello")
        node.agent.kill()
        node.restart_agent()
        node.wait_published("data")
        node.put("data", phase="Succeeded")
        wait_for(lambda: node.told() == [], what="the end of the direct volume", instead=node.tell)
        wait_for(lambda: node.volumes("data") == [], what="the end of the volume", instead=node.tell)


def test_a_device_that_holds_something_else_is_never_formatted(node: DeferringNode) -> None:
    node.handles["foreign"] = node.make_volume("foreign", size_bytes=32 << 20, block=True)
    with node.image("foreign").open("r+b") as file:
        file.write(b"somebody's database")
    before = node.image("foreign").read_bytes()[: 1 << 20]
    node.put("foreign")
    says = "data that is no known file system"
    wait_for(lambda: says in str(node.volumes("foreign")), what="the refusal", instead=node.tell)
    assert node.image("foreign").read_bytes()[: 1 << 20] == before
    assert node.told() == []
    wait_for(lambda: says in node.events(), what="the event", instead=node.tell)
    node.end("foreign")


def test_orphans_in_the_directories_of_runtime_and_engines_go_strangers_stay_and_what_was_lost_is_written_again(
    node: DeferringNode,
) -> None:
    target = node.add("data")
    [file] = node.cdi_files()
    before = file.read_bytes()
    node.agent.kill()
    orphan = folder(node.run_dir, node.root / "pods/gone/volumes/kubernetes.io~csi/pv-x/mount")
    stranger = folder(node.run_dir, Path("/somebody/elses/volume"))
    for place in (orphan, stranger):
        shutil.copytree(folder(node.run_dir, target), place)
    file.rename(file.with_name("csi-bridge.io-volume_gone-x.json"))
    node.restart_agent()
    wait_for(lambda: not orphan.exists(), what="the end of the orphan", instead=node.tell)
    wait_for(lambda: node.cdi_files() == [file], what="the file", instead=node.tell)
    assert file.read_bytes() == before
    assert stranger.exists()
    assert folder(node.run_dir, target).exists()
    shutil.rmtree(stranger)
    node.end("data")


@pytest.fixture
def own(short_dir: Path, tmp_path: Path) -> Iterator[DeferringNode]:
    with DeferringNode(short_dir, tmp_path) as node:
        node.start()
        yield node


def test_an_agent_that_may_not_defer_any_more_still_takes_the_volume_back(own: DeferringNode) -> None:
    node = own
    node.add("data")
    node.agent.kill()
    node.allow(allowed=False)
    node.drop_flags("--direct-runtime")
    node.restart_agent()
    wait_for(lambda: "--direct-runtime=kata=" in str(node.volumes("data")), what="the reason", instead=node.tell)
    assert len(node.told()) == 1
    node.end("data")


def test_an_engine_gets_the_mount_of_each_container_by_a_name_while_the_volume_is_there(
    node: DeferringNode,
) -> None:
    node.handles["data"] = node.make_volume("data", size_bytes=32 << 20, block=True)
    asks = asking("data", "data", runtimeClassName="kata-rs")
    mount = {**asks["spec"]["containers"][0]["volumeMounts"][0], "readOnly": True}
    asks["spec"]["containers"].append({"name": "reader", "image": "none", "volumeMounts": [mount]})
    node.write(*volume("data", node.handles["data"]), asks, file="data")
    (target,) = node.wait_published("data")
    (shown,) = node.volumes("data")
    assert [(each["container"], each["path"]) for each in shown["devices"]] == [("c", "/data"), ("reader", "/data")]
    place = {"hostPath": os.path.realpath(target), "containerPath": "/data", "type": "directvol"}
    assert node.cdi_edits("data") == [
        {"mounts": [{**place, "options": ["rbind", "rw"]}]},
        {"mounts": [{**place, "options": ["rbind", "ro"]}]},
    ]
    said = by_hand("edge", "volumes", f"--status=unix://{node.agent.socket}").stdout
    assert all(each["name"] in said for each in shown["devices"])
    node.end("data")
    assert node.cdi_files() == []


def test_an_engine_gets_a_raw_block_volume_by_a_name(node: DeferringNode) -> None:
    node.handles["raw"] = node.make_volume("raw", block=True)
    node.write(*volume("raw", node.handles["raw"], block=True), pod("raw", "raw", block=["raw"]), file="raw")
    (path,) = node.wait_published("raw")
    [edits] = node.cdi_edits("raw")
    [device] = edits["deviceNodes"]
    assert (device["path"], device["permissions"]) == ("/dev/raw", "rw")
    assert Path(device["hostPath"]).lstat().st_rdev == path.stat().st_rdev
    node.remove("raw")
    node.wait_clean()


@pytest.mark.slow
def test_twenty_volumes_at_once_each_get_their_own_device(
    node: DeferringNode, record_property: Callable[[str, object], None]
) -> None:
    names, before = [f"v{number}" for number in range(20)], len(node.agent.logged("ready after"))
    objects = []
    for name in names:
        node.handles[name] = node.make_volume(name, size_bytes=16 << 20, block=True)
        objects += [*volume(name, node.handles[name]), asking(name, name)]
    node.write(*objects, file="all")
    paths = [node.wait_published(name, timeout_s=120)[0] for name in names]
    devices = [mount_info(node.run_dir, path)["device"] for path in paths]
    assert len(set(devices)) == 20
    backing = [Path("/sys/block", Path(device).name, "loop/backing_file").read_text().strip() for device in devices]
    assert backing == [str(node.image(name)) for name in names]
    said = str(node.agent.logged("ready after")[before:])
    took_ms = sorted(int(took) for took in re.findall(r"ready after (\d+) ms", said))
    assert len(took_ms) == 20
    record_property("handover_p95_ms", took_ms[18])
    node.remove("all")
    node.wait_clean(timeout_s=120)


@pytest.mark.slow
def test_each_pod_gets_its_own_data_after_a_reboot_without_a_cloud_with_exchanged_devices(tmp_path: Path) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="csi-") as directory,
        DeferringNode(Path(directory), tmp_path, reboots=True) as node,
    ):
        node.start()
        before = {name: mount_info(node.run_dir, node.add(name))["device"] for name in ("one", "two")}
        for name in before:
            with node.guest(name) as inside:
                node.seen(inside / "file").write_text(name)
        node.bridge.hub.kill()
        node.power_off()
        shutil.rmtree(node.run_dir)
        for name, other in (("one", "two"), ("two", "one")):
            subprocess.run(["losetup", before[other], node.image(name)], check=True)
        node.boot()
        for name, other in (("one", "two"), ("two", "one")):
            target = node.wait_published(name)[0]
            assert mount_info(node.run_dir, target)["device"] == before[other]
            with node.guest(name) as inside:
                assert node.seen(inside / "file").read_text() == name
