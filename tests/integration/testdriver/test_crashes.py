"""`kill -9` at any moment: what was answered stays true, what was not can be asked again, nothing is left over."""

import os
import random
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from common.csi import csi_pb2 as pb
from tests.integration.testdriver.support import MIB, Running, block, mount, needs_loops, needs_mounts, size
from tests.kit.leftovers import loops_below, mounts_below


def killed_by(driver: Running, fault: str, call: Callable[[], Any]) -> None:
    """Make a call that kills the driver, and start it again without the fault."""
    driver.set_faults(fault)
    with pytest.raises(grpc.RpcError):
        call()
    assert driver.wait_until_dead() == -9
    driver.set_faults()
    driver.start()


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_create_that_killed_the_driver_is_repeated_with_one_volume(driver: Running, moment: str) -> None:
    killed_by(driver, f"CreateVolume=crash-{moment}", lambda: driver.create("a"))

    volume = driver.create("a")

    assert driver.on_disk() == driver.volumes() == [volume.volume_id]


def test_each_controller_call_that_killed_the_driver_after_its_work_can_be_repeated(driver: Running) -> None:
    volume = driver.create("a").volume_id
    steps: list[tuple[str, dict[str, Any]]] = [
        ("CreateSnapshot", {"name": "s", "source_volume_id": volume}),
        ("CreateVolumeGroupSnapshot", {"name": "g", "source_volume_ids": [volume]}),
        ("ControllerExpandVolume", {"volume_id": volume, "capacity_range": size(2 * MIB)}),
        ("ControllerPublishVolume", {"volume_id": volume, "node_id": "n1", "volume_capability": mount()}),
        ("ControllerUnpublishVolume", {"volume_id": volume, "node_id": "n1"}),
        ("DeleteVolume", {"volume_id": volume}),
    ]

    for method, fields in steps:
        killed_by(driver, f"{method}=crash-after", lambda: driver.call(method, **fields))  # noqa: B023  # called at once
        driver.call(method, **fields)

    assert driver.on_disk() == []
    assert len(driver.on_disk("snapshots")) == len(driver.call("ListSnapshots").entries) == 2


@needs_mounts
def test_each_node_call_that_killed_the_driver_after_its_work_can_be_repeated_or_undone(
    driver: Running, pod: Path
) -> None:
    volume = driver.attached("a")
    steps: list[tuple[str, Callable[[], None]]] = [
        ("NodeStageVolume", lambda: driver.stage(volume, pod / "staging")),
        ("NodePublishVolume", lambda: driver.publish(volume, pod / "staging", pod / "target")),
        ("NodeUnpublishVolume", lambda: driver.unpublish(volume, pod / "target")),
        ("NodeUnstageVolume", lambda: driver.unstage(volume, pod / "staging")),
    ]

    for method, call in steps:
        killed_by(driver, f"{method}=crash-after", call)
        call()

    assert mounts_below(driver.root) == []
    driver.discard(volume)
    assert driver.on_disk() == []


@needs_mounts
@pytest.mark.parametrize("seed", range(4))
def test_an_inline_volume_whose_driver_was_killed_is_gone_after_its_unpublish(
    driver: Running, pod: Path, seed: int
) -> None:
    volume, chance = pb.Volume(volume_id="csi-1"), random.Random(seed)
    context = {"csi.storage.k8s.io/ephemeral": "true", "size": "1Mi"}

    def work() -> None:
        try:
            while True:
                driver.publish(volume, None, pod / "target", volume_context=context)
                driver.unpublish(volume, pod / "target")
        except grpc.RpcError:
            return

    thread = threading.Thread(target=work)
    thread.start()
    threading.Event().wait(chance.random() * 0.2)
    os.kill(driver.pid, signal.SIGKILL)
    thread.join()
    driver.wait_until_dead()
    driver.start()

    driver.unpublish(volume, pod / "target")

    assert (driver.on_disk(), mounts_below(driver.root), (pod / "target").exists()) == ([], [], False)
    driver.publish(volume, None, pod / "target", volume_context=context)
    driver.unpublish(volume, pod / "target")


def test_what_was_half_made_is_removed_by_the_next_start(driver: Running) -> None:
    source = driver.create("source")
    data = driver.state / "volumes" / source.volume_id / "data"
    for number in range(10_000):
        (data / str(number)).touch()
    copying = driver.begin("CreateSnapshot", name="s", source_volume_id=source.volume_id)
    while not driver.on_disk("snapshots"):
        assert not copying.done()
    driver.kill()
    assert driver.on_disk("snapshots")

    driver.start()

    assert driver.on_disk("snapshots") == []
    assert not driver.call("ListSnapshots").entries
    driver.call("CreateSnapshot", name="s", source_volume_id=source.volume_id)


@pytest.mark.parametrize("seed", range(8))
def test_a_driver_killed_in_the_midst_of_many_calls_keeps_its_word(start: Callable[..., Running], seed: int) -> None:
    driver, chance = start(), random.Random(seed)
    created: dict[str, str] = {}
    deleted: set[str] = set()

    def work(thread: int) -> None:
        for number in range(1000):
            name = f"{thread}-{number}"
            try:
                volume = driver.create(name, block() if number % 2 else mount())
                created[name] = volume.volume_id
                if number % 3:
                    driver.call("DeleteVolume", volume_id=volume.volume_id)
                    deleted.add(name)
            except grpc.RpcError:
                return

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(8)]
    for thread in threads:
        thread.start()
    threading.Event().wait(0.2 + chance.random() * 0.8)
    os.kill(driver.pid, signal.SIGKILL)
    for thread in threads:
        thread.join()
    driver.wait_until_dead()

    driver.start()

    kept = {created[name] for name in created.keys() - deleted}
    listed = set(driver.volumes())
    assert sorted(listed) == driver.on_disk()
    # A delete without an answer may have been done; a create without an answer may have been, too.
    assert len(kept - listed) <= len(threads)
    assert not {created[name] for name in deleted} & listed
    for name in created.keys() - deleted:
        if created[name] in listed:
            kind = block() if int(name.partition("-")[2]) % 2 else mount()
            assert driver.create(name, kind).volume_id == created[name]
    assert list((driver.state / "trash").iterdir()) == []


@needs_loops
@pytest.mark.parametrize("seed", range(6))
def test_a_driver_killed_while_it_mounts_leaves_nothing_that_it_cannot_undo(
    start: Callable[..., Running], pod: Path, seed: int
) -> None:
    driver, chance = start("--fs=image"), random.Random(seed)
    volume = driver.attached("a", capacity_range=size(64 * MIB))

    def work() -> None:
        try:
            for _ in range(100):
                driver.stage(volume, pod / "staging")
                driver.publish(volume, pod / "staging", pod / "target")
                driver.unpublish(volume, pod / "target")
                driver.unstage(volume, pod / "staging")
        except grpc.RpcError:
            return

    thread = threading.Thread(target=work)
    thread.start()
    threading.Event().wait(chance.random() * 0.3)
    os.kill(driver.pid, signal.SIGKILL)
    thread.join()
    driver.wait_until_dead()

    driver.start()
    driver.unpublish(volume, pod / "target")
    driver.unstage(volume, pod / "staging")

    assert (mounts_below(driver.root), loops_below(driver.root)) == ([], [])
    assert not (pod / "target").exists()
    driver.stage(volume, pod / "staging")
    driver.unstage(volume, pod / "staging")
    driver.discard(volume)
    assert driver.on_disk() == []
