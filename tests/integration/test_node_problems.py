"""What only a node sees, told at the hub: a driver that hangs or is gone, and a full disk."""

import signal
from pathlib import Path

import pytest

from tests.kit.bridge import Bridge
from tests.kit.operator import by_hand
from tests.kit.running_driver import Running
from tests.kit.small_disk import fill, make_room, small_disk
from tests.kit.waiting import wait_for


def said(bridge: Bridge, command: str) -> str:
    return " ".join(by_hand(command, f"--hub=unix://{bridge.hub.uds}").stdout.split())


def wait_said(bridge: Bridge, sentence: str, *, ended: bool = False) -> None:
    wait_for(
        lambda: all((sentence in said(bridge, command)) is not ended for command in ("status", "nodes", "doctor")),
        what=f"{'the end of ' if ended else ''}{sentence!r} in status, nodes and doctor",
        timeout_s=60.0,
        instead=lambda: said(bridge, "status"),
    )


@pytest.mark.slow
def test_status_nodes_and_doctor_at_the_hub_say_that_a_driver_hangs_and_that_a_disk_is_full(
    bridge: Bridge, short_dir: Path
) -> None:
    driver = Running(short_dir, node="d1").start()
    hangs = f"edge node n1 says: the driver at {driver.socket} cannot be asked: "
    try:
        with small_disk(short_dir / "n1", "size=24m") as disk:
            driver.process.signal(signal.SIGSTOP)
            bridge.start_hub()
            agent = bridge.start_agent("n1", driver.socket)
            wait_said(bridge, hangs)
            driver.process.signal(signal.SIGCONT)
            wait_said(bridge, hangs, ended=True)

            fill(disk)
            full = f"edge node n1 says: the disk of {disk} is full: "
            wait_said(bridge, full)
            agent.wait_logged(f"the disk of {disk} is full")
            make_room(disk)
            wait_said(bridge, full, ended=True)
    finally:
        driver.kill()
