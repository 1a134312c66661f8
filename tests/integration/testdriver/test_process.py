"""The process: starting, refusing to start, stopping."""

import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.testdriver.support import Running, ended, mount, size


def test_sigterm_ends_the_process_well_and_its_socket_is_gone(driver: Running) -> None:
    assert driver.stop() == 0
    assert not driver.socket.exists()


def test_sigterm_lets_a_call_that_works_end(driver: Running) -> None:
    driver.set_faults("CreateVolume=delay:1s")
    call = driver.begin("CreateVolume", name="a", volume_capabilities=[mount()], capacity_range=size(1))
    while not driver.calls("CreateVolume"):
        pass
    os.kill(driver.pid, signal.SIGTERM)

    assert call.result().volume.volume_id
    assert driver.wait_until_dead() == 0


def test_the_socket_of_a_process_that_was_killed_is_taken_over(driver: Running) -> None:
    driver.kill()
    assert driver.socket.exists()

    driver.start()

    assert driver.call("Probe").ready.value


def test_the_socket_of_a_process_that_answers_is_not(driver: Running) -> None:
    second = Running(driver.root, node="n1", state=driver.root / "other")

    assert "another process answers" in ended(second)


@pytest.mark.parametrize(
    ("flag", "told"),
    [
        ("--endpoint=unix:///nowhere/csi.sock", "--endpoint: the directory /nowhere does not exist"),
        ("--endpoint=tcp://127.0.0.1:1", "--endpoint: write unix:///absolute/path"),
        ("--state-dir=/proc/state", "--state-dir: cannot be used"),
        ("--call-log=/nowhere/calls", "--call-log: cannot be written"),
        ("--fault=CreateVolume=slow", "--fault: 'slow' is no fault"),
        ("--capacity=much", "'much' is no size"),
        ("--fs=ntfs", "'ntfs' is not one of"),
    ],
)
def test_a_flag_that_cannot_work_ends_the_process_with_code_2_and_its_name(root: Path, flag: str, told: str) -> None:
    assert told in ended(Running(root, flag))


def test_a_file_that_is_no_socket_is_left_alone(root: Path) -> None:
    (root / "n1.sock").write_text("mine")

    assert "cannot be used" in ended(Running(root))
    assert (root / "n1.sock").read_text() == "mine"


def test_a_database_that_is_none_ends_the_process_with_a_clear_message(root: Path) -> None:
    (root / "state").mkdir()
    (root / "state" / "state.db").write_bytes(b"garbage" * 1000)

    assert "--state-dir: cannot be used: file is not a database" in ended(Running(root))


def test_garbage_on_the_socket_does_not_disturb_the_driver(driver: Running) -> None:
    for garbage in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\0" * 4096):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(driver.socket))
            connection.sendall(garbage)

    assert driver.call("Probe").ready.value


def test_a_driver_with_another_name_has_another_topology_key(start: Callable[..., Running]) -> None:
    driver = start("--drivername=other.csi")

    assert driver.call("GetPluginInfo").name == "other.csi"
    assert dict(driver.call("NodeGetInfo").accessible_topology.segments) == {"topology.other.csi/node": "n1"}
