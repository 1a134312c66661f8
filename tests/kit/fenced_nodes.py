"""Two nodes without kubelets that share a disk, a hub, and a volume with `csi-bridge.io/offline: fence`.

Each node is a mount namespace of its own, with an agent, a vendor's driver and a watchdog that the test plays: when its
time is over, all processes of the node end, and its loop device is detached.
"""

import contextlib
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Self

import yaml

from cli.edge_volumes import ask
from common.csi import csi_pb2 as csi
from common.errors import BridgeError
from common.objects.offline_policy import ANNOTATION
from common.pages.json_form import plain
from common.status import Code
from tests.kit import fencing_agent
from tests.kit.bridge import Agent, Bridge
from tests.kit.edge_node import DRIVER, attachment, csi_driver, pod, volume
from tests.kit.fake_watchdog import FakeWatchdog
from tests.kit.machine import Machine
from tests.kit.processes import Process
from tests.kit.shared_disk import HangingStorage, SharedDisk
from tests.kit.sidecar import Outcome
from tests.kit.vendor import Refusal, Vendor, VendorCall
from tests.kit.waiting import let_pass, wait_for

LEASE_S, WATCHDOG_S = 2.0, 5.0
BOUND_S = LEASE_S * 1.01 + WATCHDOG_S * 1.1 + 5.0
LIMIT_S = 60.0
HANDLE = "h-data"

WRITER = """
import mmap, os, sys, time
path, kind, pause_s = sys.argv[1], sys.argv[2], 0.003
number = 0
while True:
    try:
        flags = os.O_DIRECT if kind == "direct" else 0
        file = os.open(f"{path}/{kind}", os.O_RDWR | os.O_CREAT | flags)
        os.ftruncate(file, 1 << 16)
        memory = mmap.mmap(file if kind == "mmap" else -1, 1 << 16)
        while True:
            number += 1
            block = number.to_bytes(8, "big") * 512
            if kind == "fork":
                if os.fork() == 0:
                    try:
                        file = os.open(f"{path}/{kind}", os.O_RDWR)
                        os.write(file, block)
                        os.fdatasync(file)
                    finally:
                        os._exit(0)
                os.wait()
            else:
                memory[:4096] = block
                if kind == "mmap":
                    memory.flush()
                else:
                    os.pwritev(file, [memoryview(memory)[:4096]], number % 16 * 4096)
                    if kind == "open" and number % 8 == 0:
                        os.fdatasync(file)
            time.sleep(pause_s)
    except OSError:
        time.sleep(pause_s)
"""
"""Writes as fast as it can, for ever. `fork` exits every 3 ms, and its child writes."""

KINDS = ("open", "direct", "mmap", "fork")


class Node:
    """One of the two nodes."""

    def __init__(self, nodes: "FencedNodes", name: str) -> None:
        self.name, self._nodes = name, nodes
        self.writers: list[Process] = []  # the processes that write to the volume
        self._count = 0
        self.directory = nodes.directory / f"m-{name}"
        self.directory.mkdir()
        self.machine = Machine(self.directory, self.directory)
        self.machine.boot()
        # The driver, in the test's process; it mounts inside the node.
        self.vendor = Vendor(self.directory / "v.sock", name=DRIVER)
        self.vendor.identity.node_id = name
        self.vendor.on("NodeGetCapabilities", lambda _call: _STAGES)
        self.vendor.on("NodeStageVolume", self.stage)
        self.vendor.on("NodePublishVolume", self.publish)
        self.vendor.on("NodeUnpublishVolume", lambda call: self._unmount(call, csi.NodeUnpublishVolumeResponse()))
        self.vendor.on("NodeUnstageVolume", lambda call: self._unmount(call, csi.NodeUnstageVolumeResponse()))
        self.vendor.start()
        self.watchdog = FakeWatchdog(self.directory / "watchdog", WATCHDOG_S, self.reset)
        self.link = nodes.bridge.start_link()  # the line between agent and hub
        self.root = self.directory / "kubelet"
        fence = (f"--controller-lease={LEASE_S:g}s", "--fence=on", f"--watchdog={self.watchdog.path}")
        agent = Agent(
            name,
            self.link.address,
            [self.vendor.socket],
            self.directory,
            nodes.logs,
            (f"--root-dir={self.root}", "--keepalive=1s", *fence),
        )
        self.working = self.directory / "working"  # the agent's working directory
        self.working.mkdir()
        words = ["env", f"--chdir={self.working}", sys.executable, "-P", fencing_agent.__file__, f"{WATCHDOG_S:g}"]
        words += agent.process.command[1:]
        self._words = words
        agent.process.command = self.machine.inside(words)
        self.agent = agent
        nodes.bridge.members.append(agent)
        agent.start()

    # ---- the driver

    def stage(self, call: VendorCall) -> csi.NodeStageVolumeResponse:
        """Mount the disk's file system."""
        device, path = self._nodes.disk.attach(self.name), call.request.staging_target_path
        options = ["-o", "nouuid"] if self._nodes.disk.fs_type == "xfs" else []
        if path not in self.machine.mounts(self.root):
            self.run("mount", "-t", self._nodes.disk.fs_type, *options, device, path)
        return csi.NodeStageVolumeResponse()

    def publish(self, call: VendorCall) -> csi.NodePublishVolumeResponse:
        """Bind it."""
        path = call.request.target_path
        if path not in self.machine.mounts(self.root):
            self.run("mkdir", "-p", path)
            self.run("mount", "--bind", call.request.staging_target_path, path)
        return csi.NodePublishVolumeResponse()

    def _unmount(self, call: VendorCall, answer: Any) -> Any:
        path = getattr(call.request, "target_path", "") or getattr(call.request, "staging_target_path", "")
        if path in self.machine.mounts(self.root):
            self.run("umount", path)
        return answer

    def run(self, *words: object) -> None:
        """Run a command on the node."""
        done = subprocess.run(self.machine.inside(words), capture_output=True, text=True, check=False)
        if done.returncode:
            raise Refusal(Code.INTERNAL, f"{words}: {done.stderr}")

    # ---- what a test sees

    def volumes(self) -> list[dict[str, Any]]:
        with contextlib.suppress(BridgeError):
            state: Any = plain(ask(self.agent.socket))
            return list(state["volumes"])
        return [{"state": "unknown"}]

    def tell(self) -> str:
        return f"{self.volumes()}\n{self.agent.process.log_tail()}"

    def wait_published(self) -> Path:
        def look() -> list[dict[str, Any]]:
            found = self.volumes()
            return found if [each["state"] for each in found] == ["published"] else []

        return Path(wait_for(look, what=f"volume on {self.name}", timeout_s=LIMIT_S, instead=self.tell)[0]["path"])

    def wait_fenced(self) -> dict[str, Any]:
        def look() -> list[dict[str, Any]]:
            return [each for each in self.volumes() if each["state"] == "fenced" and "shut down" in each["error"]]

        return wait_for(look, what=f"fenced volume on {self.name}", timeout_s=LIMIT_S, instead=self.tell)[0]

    def wait_clean(self) -> None:
        wait_for(lambda: not self.volumes(), what=f"clean {self.name}", timeout_s=LIMIT_S, instead=self.tell)

    # ---- writers

    def write(self, kind: str) -> Process:
        """Start a writer on the published volume, and wait for its first block."""
        path = self.wait_published()
        words = self.machine.inside([sys.executable, "-c", WRITER, path, kind])
        if kind == "fork":
            own = ("unshare", "--mount", "--propagation=private", "--pid", "--fork", "--kill-child", "--mount-proc")
            words = self.machine.inside([*own, sys.executable, "-c", WRITER, path, kind])
        file = path / kind
        self._count += 1
        process = Process(f"{self.name}-{self._count}", words, log=self.directory / f"writer-{self._count}.log")
        process.start()
        self.writers.append(process)
        seen = self.machine.seen(file)
        wait_for(lambda: seen.exists() and seen.stat().st_size, what=f"bytes in {file}", instead=process.log_tail)
        return process

    def stop_writers(self) -> None:
        for process in self.writers:
            process.kill()
        self.writers.clear()

    # ---- faults

    def partition(self) -> None:
        self.link.command("stall")

    def cut(self) -> None:
        self.link.command("cut hold")

    def kill(self) -> None:
        self.agent.kill()

    def stop(self) -> None:
        self.agent.process.signal(signal.SIGSTOP)

    def reset(self) -> None:
        """End all that runs here, as a reset of the machine does."""
        for process in (self.agent.process, *self.writers):
            process.signal(signal.SIGKILL)
        if self._nodes.storage is not None:  # a process ends when its writes do
            self._nodes.storage.thaw()
        self.agent.kill()
        for process in self.writers:
            process.kill()
        self.machine.power_off()
        self._nodes.disk.detach(self.name)

    def heal(self) -> None:
        """End any fault."""
        self.agent.process.signal(signal.SIGCONT)
        self.link.command("cut refuse")
        self.link.command("heal")
        if not self.machine.is_on:
            self.machine.boot()
            self.agent.process.command = self.machine.inside(self._words)
        if not self.agent.process.running:
            self.agent.start()

    def end(self) -> None:
        self.watchdog.close()
        self.agent.process.signal(signal.SIGCONT)
        self.stop_writers()
        self.agent.kill()
        self.vendor.stop()
        if self.machine.is_on:
            self.machine.power_off()


_STAGES = csi.NodeGetCapabilitiesResponse(capabilities=[{"rpc": {"type": "STAGE_UNSTAGE_VOLUME"}}])


class FencedNodes:
    """A hub, the two nodes, and a third one that serves the detach."""

    def __init__(self, directory: Path, logs: Path, fs_type: str, *, may_hang: bool = False) -> None:
        self.directory, self.logs = directory, logs
        self.shared = Path(tempfile.mkdtemp(prefix="fence-", dir="/dev/shm"))
        self.storage = HangingStorage(self.shared) if may_hang else None
        folder = self.storage.directory if self.storage is not None else self.shared
        self.disk = SharedDisk(folder / "disk", fs_type)
        self.manifests = directory / "manifests"
        self.manifests.mkdir()
        self.bridge = Bridge(directory, logs)
        self.server = Vendor(directory / "v.sock", name=DRIVER)
        self.server.identity.node_id = "i-server"
        self.server.identity.capabilities.append("PUBLISH_UNPUBLISH_VOLUME")
        self.nodes: dict[str, Node] = {}

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.__exit__(None)
            raise
        return self

    def _start(self) -> None:
        self.put("driver", csi_driver(attach=True))
        self.bridge.start_hub(f"--manifests={self.manifests}", "--keepalive=1s")
        self.server.start()
        self.bridge.start_agent("server", self.server.socket)
        for name in ("n1", "n2"):
            self.nodes[name] = Node(self, name)
        self.sidecar = self.bridge.start_proxy(DRIVER, node="server").sidecar()
        self.bridge.wait_routed(self.sidecar)
        pv, claim = volume("data", HANDLE)
        pv["metadata"]["annotations"] = {ANNOTATION: "fence"}
        self.put("volume", pv, claim)

    def __exit__(self, *failure: object) -> None:
        for node in self.nodes.values():
            node.end()
        try:
            self.bridge.__exit__(*failure)
        finally:
            self.server.stop()
            for name in list(self.disk.devices):
                self.disk.detach(name)
            if self.storage is not None:
                self.storage.close()
            shutil.rmtree(self.shared, ignore_errors=True)

    def put(self, file: str, *objects: Any) -> None:
        new = self.manifests / f".{file}.new"
        new.write_text(yaml.safe_dump_all(objects) or "# nothing\n")
        new.replace(self.manifests / f"{file}.yaml")

    def move(self, name: str) -> None:
        """Attach the volume to a node, and run a pod there that wants it."""
        self.put("attachment", attachment(HANDLE, "pv-data", node=name, named_after=name))
        self.put("pod", pod(f"web-{name}", "data", nodeName=name))

    def end_pod(self) -> None:
        """Delete the pod, as an eviction does. Its node does not hear of that."""
        self.put("pod")
        let_pass(1.5)  # until the hub has read it: a detach that the pod on the node waits for would pass

    def detach(self, name: str) -> Outcome:
        request = csi.ControllerUnpublishVolumeRequest(volume_id=HANDLE, node_id=name)
        return self.sidecar.call("ControllerUnpublishVolume", request)

    def wait_detached(self, name: str) -> None:
        said = []

        def look() -> bool:
            outcome = self.detach(name)
            said[:] = [outcome.refusal]
            return outcome.ok

        wait_for(look, what=f"detach from {name}", timeout_s=LIMIT_S, instead=lambda: said)
        self.put("attachment")
