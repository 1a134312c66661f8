"""A load node: an edge node with the load generator's driver, which mounts at once, with real mounts."""

import json
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

from bench.meter import Meter
from tests.kit.edge_node import DRIVER, NODE, EdgeNode, Object, csi_driver, pod, volume
from tests.kit.peers.testdriver import RunningDriver, start_testdriver
from tests.kit.processes import listens_on
from tests.kit.testdriver.call_log import Call
from tests.kit.waiting import wait_for

_SLOW_S = 120.0
_QUIET_S = 0.05
"""CPU time in a second: the hub reads its manifests now and then."""

_USUAL = ("--keepalive=20s",)
"""Longer than the tests' keepalive (3 s), which lets a test notice a dead link early."""


class LoadNode(EdgeNode):
    """Hub, agent and driver, with a meter on the link.

    Attributes:
        meter: measures the bytes between agent and hub.
    """

    meter: Meter

    def __init__(self, directory: Path, loadgen: Sequence[str] = ()) -> None:
        """Begin with nothing running. Without the load generator's driver the node uses the test driver."""
        logs = directory / "logs"
        logs.mkdir()
        super().__init__(directory, logs)
        self._loadgen = loadgen

    def start_cloud(self) -> None:
        """Start driver, hub and meter. Start the agent when there is something to mount."""
        self.driver = self._start_driver()
        self.write(csi_driver(), file="driver")
        self.bridge.start_hub(f"--manifests={self.manifests}", *_USUAL)
        self.meter = Meter(self.bridge.hub.address)

    def start_agent(self, *flags: str, wait: bool = True) -> None:
        """Start the agent for the first time, through the meter."""
        self._flags = (f"--root-dir={self.root}", *_USUAL, *flags)
        self.agent = self.bridge.start_agent(
            NODE, self.driver.socket, flags=self._flags, through=self.meter.address, wait=wait
        )

    def write_json(self, objects: Sequence[Object], *, file: str) -> None:
        """Write objects to files of the manifests, a thousand each. JSON is YAML, and is written quickly."""
        for number, start in enumerate(range(0, len(objects), 1000)):
            new = self.manifests / f".{file}.new"
            new.write_text("\n---\n".join(map(json.dumps, objects[start : start + 1000])))
            new.replace(self.manifests / f"{file}-{number}.yaml")

    def published_since(self, at: float) -> list[Call]:
        """Return the volumes that the driver has published since a moment, in the order of completion."""
        ended = [call for call in self.driver.calls("NodePublishVolume") if call.code == "OK" and (call.end or 0) >= at]
        return sorted(ended, key=lambda call: call.end or 0.0)

    def wait_all_published(self, count: int, *, since: float) -> list[Call]:
        """Wait until `count` volumes were published after a moment."""
        log = self.driver.state / "calls.jsonl"

        def look() -> bool:
            # The log is parsed only when all lines may be there: the bench must not disturb the measurement.
            if not log.exists() or log.read_bytes().count(b'"NodePublishVolume"') < 2 * count:
                return False
            return len(self.published_since(since)) >= count

        self.agent.process.wait_until(look, what=f"{count} published volumes", timeout_s=_SLOW_S)
        return self.published_since(since)

    def reconnect(self, meanwhile: Callable[[], None] = lambda: None) -> dict[str, int]:
        """Cut the link, run `meanwhile`, and return the bytes that bring both sides in step again."""
        since, links = time.time(), len(self.meter.ups)
        with self.meter.closed():
            meanwhile()
        wait_for(lambda: len(self.meter.ups) > links, what="new link", timeout_s=_SLOW_S)
        wait_for(lambda: bool(self.state()["in_step"]), what="agent in step", timeout_s=_SLOW_S)
        wait_for(lambda: self.meter.quiet_s() > 1.0, what="end of the talk", timeout_s=_SLOW_S)
        return {way: self.meter.bytes_since(since, down=way == "down") for way in ("down", "up")}

    def wait_hub_read(self) -> None:
        """Wait until the hub has read the manifests, which means until it is idle."""
        wait_for(lambda: _is_quiet(self.hub_process), what="quiet hub", timeout_s=_SLOW_S)

    @property
    def process(self) -> psutil.Process:
        """The agent's process."""
        return psutil.Process(self.agent.process.pid)

    @property
    def hub_process(self) -> psutil.Process:
        """The hub's process."""
        return psutil.Process(self.bridge.hub.process.pid)

    def wipe_mounts(self) -> None:
        """Unmount everything, as a reboot does."""
        if mounts := self.mounts():
            subprocess.run(["umount", "--lazy", *reversed(mounts)], check=True)

    def _start_driver(self) -> RunningDriver:
        if not self._loadgen:
            flags = ("--no-attach", "--no-topology")
            return start_testdriver(self._supervisor, self.directory, name=DRIVER, node_id=NODE, flags=flags)
        state, socket = self.directory / "vendor", self.directory / "vendor.sock"
        state.mkdir()
        command = [
            *self._loadgen,
            "serve",
            f"--endpoint=unix://{socket}",
            f"--name={DRIVER}",
            f"--node={NODE}",
            f"--mounts={state / 'volumes'}",
            f"--call-log={state / 'calls.jsonl'}",
        ]
        process = self._supervisor.start("driver", command, ready=lambda: listens_on(socket))
        return RunningDriver(name=DRIVER, socket=socket, state=state, own=state, process=process)

    def __exit__(self, *failure: object) -> None:
        try:
            if hasattr(self, "agent"):
                self.agent.stop()
            super().__exit__(*failure)
        finally:
            if hasattr(self, "meter"):
                self.meter.close()


def cpu_s(process: psutil.Process) -> float:
    """Return the user and system time of a process so far."""
    return float(sum(process.cpu_times()[:2]))


def _is_quiet(process: psutil.Process) -> bool:
    before = cpu_s(process)
    time.sleep(1.0)
    return cpu_s(process) - before < _QUIET_S


def pods_with_a_volume(count: int, *, secrets: str = "") -> list[Object]:
    """Return `count` pods with a claim and a volume each; with three Secrets each if `secrets` is given."""
    found: list[Object] = []
    for number in range(count):
        name = f"v{number:04}"
        source: dict[str, Any] = {}
        for purpose in ("nodeStage", "nodePublish", "nodeExpand") if secrets else ():
            secret = f"{name}-{purpose.lower()}"
            source[f"{purpose}SecretRef"] = {"name": secret, "namespace": "default"}
            found.append(
                {
                    "apiVersion": "v1",
                    "kind": "Secret",
                    "metadata": {"name": secret, "namespace": "default"},
                    "stringData": {"username": f"user-{number}", "password": f"{secrets}-of-{secret}"},
                }
            )
        found += [*volume(name, f"id-{name}", source=source), pod(f"p{number:04}", name)]
    return found


def pods_without_volumes(count: int) -> list[Object]:
    """Return `count` pods that are on the node and mount nothing."""
    return [pod(f"idle{number:05}") for number in range(count)]
