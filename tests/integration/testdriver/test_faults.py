"""Faults of a running driver, and how calls wait for each other."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.integration.testdriver.support import MIB, Running, mount, refused, size
from tests.kit.waiting import wait_for


def wanted(name: str) -> dict[str, Any]:
    return {"name": name, "volume_capabilities": [mount()], "capacity_range": size(MIB)}


def test_an_injected_error_is_the_answer_and_nothing_is_done(start: Callable[..., Running]) -> None:
    driver = start("--fault=CreateVolume=error:INTERNAL:disk on fire")

    with refused("INTERNAL", "disk on fire"):
        driver.create("a")

    assert driver.on_disk() == []


def test_the_fault_file_switches_a_fault_on_and_off_without_a_restart(driver: Running) -> None:
    driver.set_faults("CreateVolume=error:ABORTED")
    with refused("ABORTED"):
        driver.create("a")

    driver.set_faults()

    driver.create("a")


def test_slow_work_goes_on_when_the_caller_is_gone_and_its_retry_gets_the_one_volume(driver: Running) -> None:
    driver.set_faults("CreateVolume=delay:2s")
    left = driver.begin("CreateVolume", **wanted("a"))
    wait_for(lambda: bool(driver.calls("CreateVolume")), what="such calls")
    left.cancel()
    driver.set_faults()

    volume = driver.create("a")

    assert driver.on_disk() == [volume.volume_id]
    assert [call.code for call in driver.calls("CreateVolume")] == ["OK", "OK"]


def test_a_call_that_hangs_ends_with_its_caller_and_leaves_its_name_free(driver: Running) -> None:
    driver.set_faults("CreateVolume=hang")
    hanging = driver.begin("CreateVolume", **wanted("a"))
    wait_for(lambda: bool(driver.calls("CreateVolume")), what="such calls")
    driver.set_faults()

    driver.create("a")

    assert not hanging.done()
    hanging.cancel()
    wait_for(
        lambda: sorted(call.code for call in driver.calls("CreateVolume")) == ["CANCELLED", "OK"], what="such calls"
    )


def test_a_driver_that_forgets_names_makes_a_volume_for_each_call(start: Callable[..., Running]) -> None:
    driver = start("--fault=CreateVolume=non-idempotent")

    assert driver.create("a") != driver.create("a")
    assert len(driver.volumes()) == 2


@pytest.mark.slow
def test_300_calls_wait_together_while_identity_answers(start: Callable[..., Running]) -> None:
    driver = start("--fault=CreateVolume=delay:10s")
    calls = [driver.begin("CreateVolume", **wanted(f"v{number}")) for number in range(300)]
    wait_for(lambda: len(driver.calls("CreateVolume")) == 300, what="such calls")

    driver.call("Probe")
    driver.call("GetPluginInfo")

    assert not any(call.done() for call in calls)
    assert len({call.result().volume.volume_id for call in calls}) == 300


def test_calls_with_one_name_at_once_make_one_volume(driver: Running) -> None:
    calls = [driver.begin("CreateVolume", **wanted("a")) for _ in range(50)]

    assert len({call.result().volume.volume_id for call in calls}) == 1
    assert len(driver.on_disk()) == 1


def test_secrets_are_neither_in_the_log_nor_in_the_call_log_nor_on_the_disk(driver: Running) -> None:
    volume = driver.create("a", secrets={"password": "s3cret"})
    driver.call("CreateSnapshot", name="s", source_volume_id=volume.volume_id, secrets={"password": "s3cret"})
    driver.call("DeleteVolume", volume_id=volume.volume_id, secrets={"password": "s3cret"})
    driver.stop()

    files = [path for path in driver.root.rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if b"s3cret" in path.read_bytes()]
