"""A node that comes back without its cloud: reboots that leave no mount, and state directories that were lost."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.edge_volumes import ask, show
from tests.kit.cluster_objects import secret
from tests.kit.edge_node import DRIVER, NODE, EdgeNode, attachment, csi_driver, pod, volume
from tests.kit.needs import needs_loops
from tests.kit.waiting import wait_for

pytestmark = needs_loops

_SECONDS = 10.0  # what "within seconds" means on a busy machine

_GROUP = 4711


@pytest.fixture(scope="module")
def machine(module_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EdgeNode]:
    with EdgeNode(module_dir, tmp_path_factory.mktemp("logs"), reboots=True) as node:
        node.start()
        yield node


@pytest.fixture
def node(machine: EdgeNode) -> Iterator[EdgeNode]:
    """The machine with everything running and nothing mounted, before and after."""
    lifecycles = ["Persistent", "Ephemeral"]
    rules = csi_driver(fsGroupPolicy="File", podInfoOnMount=True, volumeLifecycleModes=lifecycles)
    machine.write(rules, file="driver")
    yield machine
    machine.driver.set_faults()
    if not machine.driver.process.running:
        machine.start_driver()
    if not machine.agent.process.running:
        machine.restart_agent()
    go_online(machine)
    for file in machine.manifests.glob("*.yaml"):
        if file.stem != "driver":
            machine.write(file=file.stem)
    machine.wait_clean()


def go_offline(node: EdgeNode) -> None:
    node.bridge.hub.kill()


def go_online(node: EdgeNode) -> None:
    if not node.bridge.hub.process.running:
        node.bridge.hub.start()
    node.agent.wait_connected()
    wait_for(lambda: node.state()["in_step"], what="word of the hub's", instead=node.tell)


def reboot(node: EdgeNode, **how: Any) -> None:
    node.power_off()
    node.boot(**how)


def inline(name: str, secret_name: str) -> dict[str, Any]:
    source = {"driver": DRIVER, "nodePublishSecretRef": {"name": secret_name}, "volumeAttributes": {"size": "1Mi"}}
    return {"name": name, "csi": source}


def add(node: EdgeNode, name: str, **more: Any) -> Path:
    """A pod with one volume of the same name, published; where it is."""
    node.write(*volume(name, node.make_volume(name), **more), pod(name, name), file=name)
    (path,) = node.wait_published(name)
    return path


def why(node: EdgeNode, pod_name: str, text: str) -> str:
    """Wait until a pod's only volume is not published because of this; the whole reason."""

    def look() -> str:
        found = [each["error"] for each in node.volumes(pod_name) if each["state"] != "published"]
        return found[0] if found and text in found[0] else ""

    return wait_for(look, what=f"{text!r} as the reason of {pod_name}", instead=node.tell)


def methods_since(node: EdgeNode, before: int) -> list[str]:
    return sorted(call.method for call in node.calls()[before:])


def waiting_for(node: EdgeNode, look: Callable[[], object], what: str) -> None:
    wait_for(look, what=what, instead=node.tell)


@pytest.mark.slow
def test_after_a_reboot_without_a_hub_every_volume_is_back_with_its_data(node: EdgeNode) -> None:
    secrets = {name: {"name": "password", "namespace": "default"} for name in ("nodeStageSecretRef",
               "nodePublishSecretRef")}  # fmt: skip
    group = {"securityContext": {"fsGroup": _GROUP}}
    node.write(secret("password", key="hunter2"), file="password")
    shared = {"mode": "ReadWriteMany"}
    node.write(*volume("data", node.make_volume("data"), source=secrets), pod("data", "data", **group), file="data")
    node.write(*volume("disk", node.make_volume("disk", block=True), block=True), pod("disk", "disk", block=["disk"]),
               file="disk")  # fmt: skip
    handle = node.make_volume("both", shared=True)
    node.write(*volume("both", handle, **shared), pod("one", "both"), pod("two", "both"), file="both")
    scratch = pod("scratch")
    scratch["spec"]["volumes"] = [inline("v", "password")]
    scratch["spec"]["containers"][0]["volumeMounts"] = [{"name": "v", "mountPath": "/v"}]
    node.write(scratch, file="scratch")
    paths = {name: node.wait_published(name)[0] for name in ("data", "disk", "one", "two", "scratch")}
    for name in ("data", "one", "scratch"):
        (node.seen(paths[name]) / "file").write_text(name)
    device = node.seen(node.seen(paths["disk"]).readlink())
    device.write_bytes(b"disk")

    go_offline(node)
    node.power_off()
    before = len(node.calls())
    node.boot()
    began = time.monotonic()
    for name, path in paths.items():
        assert node.wait_published(name) == [path]
    assert time.monotonic() - began < _SECONDS
    assert methods_since(node, before) == ["NodePublishVolume"] * 5 + ["NodeStageVolume"] * 3
    assert (node.seen(paths["data"]) / "file").read_text() == "data"
    assert (node.seen(paths["data"]) / "file").stat().st_gid == _GROUP
    assert (node.seen(paths["two"]) / "file").read_text() == "one"
    assert (node.seen(paths["scratch"]) / "file").read_text() == "scratch"
    device = node.seen(node.seen(paths["disk"]).readlink())
    with device.open("rb") as opened:
        assert opened.read(4) == b"disk"

    go_online(node)
    assert len(node.calls()) == before + 8


def test_the_command_says_that_the_node_is_offline_since_when_and_how_old_its_knowledge_is(node: EdgeNode) -> None:
    add(node, "a")
    as_of = node.state()["as_of"]
    go_offline(node)
    node.agent.kill()
    node.restart_agent()
    node.wait_published("a")
    state = node.state()
    assert not state["connected"]
    assert as_of <= state["as_of"] <= state["since"]
    head = next(show(ask(node.agent.socket)))
    assert head == (
        f"node {NODE} is offline since {state['since']}; 1 of 1 volumes published; its records are of {state['as_of']}"
    )


@pytest.mark.slow
def test_a_pod_that_is_deleted_meanwhile_keeps_its_volume_until_the_hub_says_so(node: EdgeNode) -> None:
    path = add(node, "gone")
    (node.seen(path) / "file").write_text("kept")
    go_offline(node)
    node.remove("gone")
    before = len(node.calls())
    node.agent.kill()
    node.restart_agent()
    assert node.wait_published("gone") == [path]
    reboot(node)
    assert node.wait_published("gone") == [path]
    assert (node.seen(path) / "file").read_text() == "kept"
    assert methods_since(node, before) == ["NodePublishVolume", "NodeStageVolume"]
    go_online(node)
    node.wait_clean()
    assert methods_since(node, before) == ["NodePublishVolume", "NodeStageVolume", "NodeUnpublishVolume",
                                           "NodeUnstageVolume"]  # fmt: skip


@pytest.mark.slow
def test_only_an_attachment_of_this_node_and_this_volume_that_was_attached_is_used(node: EdgeNode) -> None:
    node.write(csi_driver(attach=True), file="driver")
    handles = {name: node.make_volume(f"at-{name}") for name in ("good", "elsewhere", "stale", "early")}
    given = {
        "good": attachment(handles["good"], "pv-good"),
        "elsewhere": attachment(handles["elsewhere"], "pv-elsewhere", node="n2"),
        "stale": attachment(handles["stale"], "pv-good"),
        "early": attachment(handles["early"], "pv-early", attached=False),
    }
    reasons = {"elsewhere": "there is no VolumeAttachment", "stale": "is not for PV pv-stale",
               "early": "is not attached to this node yet"}  # fmt: skip
    for name, handle in handles.items():
        node.write(*volume(name, handle), pod(name, name), given[name], file=name)
    node.wait_published("good")
    for name, reason in reasons.items():
        why(node, name, reason)

    go_offline(node)
    reboot(node)
    node.wait_published("good")
    for name, reason in reasons.items():
        why(node, name, reason)
    assert {call.fields["volume_id"] for call in node.calls() if call.fields["volume_id"] in handles.values()} == {
        handles["good"]
    }

    go_online(node)
    for name, handle in handles.items():
        right = attachment(handle, f"pv-{name}")
        node.write(*volume(name, handle), pod(name, name), right, file=name)
        node.wait_published(name)


def test_a_lost_store_takes_nothing_down(node: EdgeNode) -> None:
    path = add(node, "a")
    (node.seen(path) / "file").write_text("kept")
    go_offline(node)
    before, mounts = len(node.calls()), node.mounts()
    node.agent.kill()
    lose(node, "edge.db")
    node.restart_agent()
    state = node.state()
    assert [each["state"] for each in state["volumes"]] == ["left over"]
    assert "the hub has not told this node its pods yet" in next(show(ask(node.agent.socket)))
    assert node.mounts() == mounts
    go_online(node)
    assert node.wait_published("a") == [path]
    assert (node.seen(path) / "file").read_text() == "kept"
    assert methods_since(node, before) == []


def test_without_its_notes_all_is_found_again_and_kept_or_taken_down(node: EdgeNode) -> None:
    kept, disk = add(node, "kept"), "disk2"
    node.write(*volume(disk, node.make_volume(disk, block=True), block=True), pod(disk, disk, block=[disk]), file=disk)
    add(node, "gone")
    node.wait_published(disk)
    (node.seen(kept) / "file").write_text("kept")
    node.agent.kill()
    lose(node, "volumes.db")
    node.write(file="gone")
    node.write(file=disk)
    node.restart_agent()
    waiting_for(node, lambda: {each["pod"] for each in node.state()["volumes"]} == {"kept"}, "end of the others")
    assert node.wait_published("kept") == [kept]
    assert (node.seen(kept) / "file").read_text() == "kept"
    assert len(node.mounts()) == 2


@pytest.mark.slow
def test_a_volume_whose_secret_cannot_be_read_says_so_and_waits_for_the_hub(node: EdgeNode) -> None:
    source = {"nodeStageSecretRef": {"name": "lost", "namespace": "default"}}
    node.write(secret("lost", key="hunter2"), file="secret")
    sealed, plain = add(node, "sealed", source=source), add(node, "plain")
    (node.seen(sealed) / "file").write_text("kept")
    go_offline(node)
    node.power_off()
    lose(node, "edge.key")
    node.boot()
    assert node.wait_published("plain") == [plain]
    why(node, "sealed", "secret default/lost is not known to this node")
    go_online(node)
    assert node.wait_published("sealed") == [sealed]
    assert (node.seen(sealed) / "file").read_text() == "kept"


def test_a_driver_that_comes_after_the_agent_gets_its_volumes_mounted(node: EdgeNode) -> None:
    path = add(node, "late")
    go_offline(node)
    reboot(node, driver=False)
    assert DRIVER in why(node, "late", "is the driver running?")
    node.start_driver()
    assert node.wait_published("late", timeout_s=_SECONDS) == [path]


@pytest.mark.slow
def test_a_driver_that_hangs_over_one_volume_holds_up_no_other(node: EdgeNode) -> None:
    staged = add(node, "staged")
    scratch = pod("quick")
    scratch["spec"]["volumes"] = [{"name": "v", "csi": {"driver": DRIVER}}]
    scratch["spec"]["containers"][0]["volumeMounts"] = [{"name": "v", "mountPath": "/v"}]
    node.write(scratch, file="quick")
    node.wait_published("quick")
    go_offline(node)
    node.power_off()
    node.driver.set_faults("NodeStageVolume=hang")
    node.boot()
    node.wait_published("quick", timeout_s=_SECONDS)
    assert [each["state"] for each in node.volumes("staged")] == ["staging"]
    assert str(staged) not in node.mounts()
    node.driver.process.kill()
    node.driver.set_faults()
    node.start_driver()
    assert node.wait_published("staged") == [staged]


def lose(node: EdgeNode, name: str) -> None:
    """Remove a file of the agent's state directory, and what belongs to it."""
    found = list((node.directory / NODE).glob(f"{name}*"))
    assert found
    for path in found:
        path.unlink()
