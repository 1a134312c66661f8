"""Two nodes without kubelets, and a volume with `csi-bridge.io/offline: fence`: no block of the old writer after the
first of the new one.

Each node is a mount namespace of its own. The writers append to one file of the volume, so its order is the order of
the writes. When the hub lets the detach pass, a witness writes at once, before the new node has even mounted.

`FENCE_ROUNDS` sets the number of rounds.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pytest
import yaml

from cli.edge_volumes import ask
from common.csi import csi_pb2 as csi
from common.errors import BridgeError
from common.offline_policy import ANNOTATION
from common.pages.json_form import plain
from edge.fencing.plan import read_plan, write_plan
from edge.volumes import attachment_name
from tests.kit.bridge import Agent, Bridge
from tests.kit.edge_node import DRIVER, csi_driver, volume
from tests.kit.machine import Machine
from tests.kit.needs import needs_mounts
from tests.kit.operator import node_state
from tests.kit.peers.testdriver import start_testdriver
from tests.kit.processes import Process, Supervisor
from tests.kit.sidecar import Sidecar
from tests.kit.vendor import Vendor
from tests.kit.waiting import let_pass, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.kit.sidecar import Outcome

pytestmark = needs_mounts

LEASE_S, STOP_S = 2.0, 3.0
BOUND_S = LEASE_S * 1.01 + STOP_S
LIMIT_S = 60.0

ROUNDS = int(os.environ.get("FENCE_ROUNDS", "6"))

WRITER = """
import mmap, os, sys, time
path, stamp, kind = sys.argv[1:]
file = -1
while True:
    try:
        if file < 0:
            file = os.open(path, os.O_WRONLY | os.O_APPEND)
        os.write(file, stamp.encode())
        if kind == "reopen":
            os.close(file)
            file = -1
    except OSError:
        file = -1
    time.sleep(0.0005)
"""
"""Appends its stamp as fast as it can. `open` keeps the file open, `reopen` opens it for each stamp."""

KINDS = ("open", "reopen", "container")


class _Inside(Supervisor):
    """Starts the vendor's processes on a machine."""

    def __init__(self, directory: Path, machine: Machine) -> None:
        super().__init__(directory)
        self._machine = machine

    def start(self, name: str, command: Sequence[object], **more: Any) -> Process:
        return super().start(name, self._machine.inside(command), **more)


class Node:
    """One of the two nodes: a machine, an agent, a vendor's driver, and at times a writer.

    Attributes:
        link: the line between agent and hub.
        agent: the agent.
        writer: the newest writer.
    """

    agent: Agent

    def __init__(self, world: World, name: str, *, flags: Sequence[str]) -> None:
        self.name, self._world = name, world
        self.writer: Process | None = None
        self._writers = 0
        world.nodes[name] = self
        self.directory = world.directory / f"m-{name}"
        self.directory.mkdir()
        self.machine = Machine(self.directory, self.directory)
        self.machine.boot()
        self.supervisor = _Inside(self.directory / "vendor-logs", self.machine)
        flags_of_driver = ("--no-attach", "--no-topology")
        self.driver = start_testdriver(
            self.supervisor, self.directory, name=DRIVER, node_id=name, flags=flags_of_driver, shared_state=world.shared
        )
        self.link = world.bridge.start_link()
        self.root = self.directory / "kubelet"
        self.reset = self.directory / "reset"
        self.reset.touch()
        fence = (f"--controller-lease={LEASE_S:g}s", f"--fence-stop={STOP_S:g}s", f"--fence-reset={self.reset}")
        agent = Agent(
            name,
            self.link.address,
            [self.driver.socket],
            self.directory,
            world.logs,
            (f"--root-dir={self.root}", "--keepalive=1s", *fence, *flags),
        )
        agent.process.command = self.machine.inside(agent.process.command)
        self.agent = agent
        world.bridge.members.append(agent)
        agent.start()

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

    def wait_clean(self) -> None:
        wait_for(lambda: not self.volumes(), what=f"clean {self.name}", timeout_s=LIMIT_S, instead=self.tell)

    def write(self, stamp: str, kind: str) -> None:
        """Start a writer on the published volume."""
        path = self.wait_published()
        if self.writer is not None:
            self.writer.kill()
        self._writers += 1
        words: list[object] = [sys.executable, "-c", WRITER, path / "stamps", stamp, kind]
        if kind == "container":
            own = self.directory / f"c{self._writers}"
            own.mkdir()
            words = [sys.executable, "-c", WRITER, own / "stamps", stamp, "reopen"]
            script = 'mount --bind "$0" "$1" && shift && exec "$@"'
            words = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, path, own, *words]
        self.writer = Process(
            f"writer-{self.name}-{self._writers}", self.machine.inside(words), log=self.directory / "w"
        )
        self.writer.start()
        wait_for(lambda: self._world.stamps().count(stamp.strip()), what=f"stamp {stamp}", instead=self.writer.output)

    def end_open_call(self) -> None:
        """End the driver's call that the agent's death left open, as the reset of a real machine does.

        It is the only reason for a reset here.
        """
        plan = read_plan(self.directory / self.name)
        assert plan is not None
        assert any(held.open_calls for held in plan.volumes), self.tell()
        self.agent.kill()
        write_plan(
            self.directory / self.name,
            replace(plan, volumes=tuple(replace(it, open_calls=()) for it in plan.volumes)),
        )
        self.reset.write_text("")

    def end(self) -> None:
        """End all that runs here."""
        if self.writer is not None:
            self.writer.kill()
        with contextlib.suppress(ProcessLookupError):
            self.agent.process.signal(signal.SIGCONT)
        self.agent.kill()
        for pid in self.watchdogs():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.supervisor.stop()
        if self.machine.is_on:
            self.machine.power_off()

    def watchdogs(self) -> list[int]:
        """The agent's watchdog processes: those with its state directory in their command."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                words = path.read_bytes().split(b"\0")
                if b"edge.fencing.watchdog" in words and os.fsencode(self.directory / self.name) in words:
                    found.append(int(path.parent.name))
        return found


class World:
    """A hub, the two nodes, and a third one that serves the detach."""

    def __init__(self, directory: Path, logs: Path, *, flags: Sequence[str] = ("--fence=reset",)) -> None:
        self.directory, self.logs, self._flags = directory, logs, flags
        self.shared = Path(tempfile.mkdtemp(prefix="fence-", dir="/dev/shm"))  # a file system of its own, in memory
        self.manifests = directory / "manifests"
        self.manifests.mkdir()
        self.bridge = Bridge(directory, logs)
        self.server = Vendor(directory / "v.sock", name=DRIVER)
        self.server.identity.node_id = "i-server"
        self.nodes: dict[str, Node] = {}

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self) -> None:
        self.write("driver", csi_driver(attach=True))
        self.bridge.start_hub(f"--manifests={self.manifests}", "--keepalive=1s")
        self.server.start()
        self.bridge.start_agent("server", self.server.socket)
        for name in ("n1", "n2"):
            Node(self, name, flags=self._flags)
        self.sidecar = self.bridge.start_proxy(DRIVER, node="server").sidecar()
        self.bridge.wait_routed(self.sidecar)
        self.handle = self._make_volume()
        self.data = self.shared / "volumes" / self.handle / "data"
        (self.data / "stamps").touch()
        pv, claim = volume("data", self.handle)
        pv["metadata"]["annotations"] = {ANNOTATION: "fence"}
        self.write("volume", pv, claim)

    def __exit__(self, *failure: object) -> None:
        for node in self.nodes.values():
            node.end()
        try:
            self.bridge.__exit__(*failure)
        finally:
            self.server.stop()
            shutil.rmtree(self.shared, ignore_errors=True)

    def write(self, file: str, *objects: Any) -> None:
        new = self.manifests / f".{file}.new"
        new.write_text(yaml.safe_dump_all(objects) or "# nothing\n")
        new.replace(self.manifests / f"{file}.yaml")

    def move(self, name: str) -> None:
        """Attach the volume to a node, and run a pod there that wants it."""
        attachment = {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "VolumeAttachment",
            "metadata": {"name": attachment_name(DRIVER, self.handle, name)},
            "spec": {"attacher": DRIVER, "nodeName": name, "source": {"persistentVolumeName": "pv-data"}},
            "status": {"attached": True},
        }
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"web-{name}", "namespace": "default"},
            "spec": {
                "nodeName": name,
                "containers": [{"name": "c", "image": "none", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
                "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}],
            },
        }
        self.write("attachment", attachment)
        self.write("pod", pod)

    def end_pod(self) -> None:
        """Delete the pod, as an eviction does. Its node does not hear of that."""
        self.write("pod")
        let_pass(1.5)  # until the hub has read it: a detach that the pod on the node waits for would pass

    def detach(self, name: str) -> Outcome:
        request = csi.ControllerUnpublishVolumeRequest(volume_id=self.handle, node_id=name)
        return self.sidecar.call("ControllerUnpublishVolume", request)

    def wait_detached(self, name: str, timeout_s: float = LIMIT_S) -> None:
        """Detach as soon as the hub lets it pass, and write a witness's block at once."""
        said = []

        def look() -> bool:
            outcome = self.detach(name)
            said[:] = [outcome.refusal]
            return outcome.ok

        wait_for(look, what=f"detach from {name}", timeout_s=timeout_s, instead=lambda: said)
        with (self.data / "stamps").open("a") as file:
            file.write(f"witness-{name}\n")

    def stamps(self) -> list[str]:
        return (self.data / "stamps").read_text().splitlines()

    def _make_volume(self) -> str:
        capability = csi.VolumeCapability(access_mode={"mode": "MULTI_NODE_MULTI_WRITER"}, mount={})
        request = csi.CreateVolumeRequest(
            name="data", capacity_range={"required_bytes": 1 << 24}, volume_capabilities=[capability]
        )
        with Sidecar(self.nodes["n1"].driver.socket) as sidecar:
            outcome = sidecar.call("CreateVolume", request)
        assert outcome.ok, outcome.refusal
        return str(outcome.answer.volume.volume_id)


@pytest.fixture
def world(short_dir: Path, tmp_path: Path) -> Iterator[World]:
    with World(short_dir, tmp_path) as world:
        yield world


def late_blocks(stamps: Sequence[str], old: str, witness: str) -> list[str]:
    """The old writer's blocks after the witness's last one."""
    after = len(stamps) - stamps[::-1].index(witness)
    return [stamp for stamp in stamps[after:] if stamp == old]


def partition(node: Node) -> None:
    node.link.command("stall")


def cut(node: Node) -> None:
    node.link.command("cut hold")


def kill(node: Node) -> None:
    node.agent.kill()


def stop(node: Node) -> None:
    node.agent.process.signal(signal.SIGSTOP)


def heal(node: Node) -> None:
    """End any of these."""
    node.agent.process.signal(signal.SIGCONT)
    node.link.command("cut refuse")
    node.link.command("heal")
    if not node.agent.process.running:
        node.agent.start()


def play(world: World, chance: random.Random, rounds: int) -> Iterator[str]:
    """Let the volume go from node to node, each time by a fault of the one that has it. Yields a line a round."""
    names = ["n1", "n2"]
    (world.data / "stamps").write_text("")
    world.move("n1")
    for number in range(rounds):
        old, new = (world.nodes[name] for name in names)
        names.reverse()
        kind, fault = chance.choice(KINDS), chance.choice((partition, cut, kill, stop))
        stamp = f"{old.name}-{number}"
        old.write(f"{stamp}\n", kind)
        if chance.random() < 0.3:  # shorter than the lease: nothing is to happen, or all of it
            cut(old)
            let_pass(chance.uniform(0.1, LEASE_S / 2))
            heal(old)
        let_pass(chance.uniform(0.0, LEASE_S))
        fault(old)
        began = time.monotonic()
        world.end_pod()
        world.wait_detached(old.name)
        took_s = time.monotonic() - began
        let_pass(0.5)
        count = len(world.stamps())
        late = late_blocks(world.stamps(), stamp, f"witness-{old.name}")
        yield f"{number} {fault.__name__} {kind}: {took_s:.1f} s, {count} blocks, {len(late)} late\n"
        assert not late, old.tell()
        if old.reset.read_text():
            old.end_open_call()
        world.move(new.name)
        heal(old)
        old.wait_clean()
        assert old.writer is not None
        # A writer that has no file open when it is looked for lives on, without the volume.
        assert kind == "reopen" or old.writer.exit_status == -signal.SIGKILL, old.tell()
        old.writer.kill()
        (world.data / "stamps").write_text("")


@pytest.mark.slow
@pytest.mark.timeout(60 + 60 * ROUNDS)
def test_no_block_of_the_old_writer_comes_after_the_first_of_the_new_one(world: World) -> None:
    seed = int(os.environ.get("FENCE_SEED", "0")) or random.randrange(1_000_000)
    with (world.logs / "rounds.txt").open("w", buffering=1) as told:
        told.write(f"seed {seed}\n")
        told.writelines(play(world, random.Random(seed), ROUNDS))


def test_a_volume_goes_to_the_other_node_when_the_lease_of_its_node_has_ended(world: World) -> None:
    old, new = world.nodes["n1"], world.nodes["n2"]
    world.move("n1")
    old.write("n1\n", "container")
    partition(old)
    began = time.monotonic()
    world.end_pod()
    world.wait_detached("n1")
    assert time.monotonic() - began >= BOUND_S
    assert not late_blocks(world.stamps(), "n1", "witness-n1")
    old.agent.wait_logged("no answer of the hub for 2 s: fenced 1 volumes: killed process")
    world.move("n2")
    new.write("n2\n", "open")
    heal(old)
    old.wait_clean()
    assert not late_blocks(world.stamps(), "n1", "witness-n1")


def test_a_node_that_comes_back_before_the_detach_mounts_its_volume_again(world: World) -> None:
    node = world.nodes["n1"]
    world.move("n1")
    node.write("n1\n", "open")
    partition(node)
    node.agent.wait_logged("fenced 1 volumes")
    heal(node)
    node.write("again\n", "open")


def test_agent_watchdog_and_writer_stopped_together_keep_the_volume_on_a_node_without_fence(
    short_dir: Path, tmp_path: Path
) -> None:
    """As on a suspended machine. Nothing there can fence before the writer goes on: the detach waits for the node."""
    with World(short_dir, tmp_path, flags=()) as world:
        node = world.nodes["n1"]
        world.move("n1")
        node.write("n1\n", "open")
        assert node.writer is not None
        assert node.watchdogs() == []
        for process in (node.agent.process, node.writer):
            process.signal(signal.SIGSTOP)
        world.end_pod()
        wait_for(lambda: not node_state(world.bridge.hub.uds, "n1")["connected"], what="a node that is away")
        until = time.monotonic() + 2 * BOUND_S
        while time.monotonic() < until:
            outcome = world.detach("n1")
            assert "csi-bridge.io/offline: fence does not count, because its agent has not told" in outcome.message
            let_pass(0.5)
        for process in (node.agent.process, node.writer):
            process.signal(signal.SIGCONT)
        node.writer.kill()
        wait_for(lambda: world.detach("n1").ok, what="detach after the return", timeout_s=LIMIT_S)


def test_a_watchdog_fences_when_agent_and_hub_are_gone_and_the_next_agent_takes_over(world: World) -> None:
    node = world.nodes["n1"]
    world.move("n1")
    node.write("n1\n", "container")
    assert node.writer is not None
    kill(node)
    assert node.writer.wait_exit(timeout_s=LEASE_S + STOP_S) == -signal.SIGKILL
    node.agent.start()
    node.write("again\n", "open")
    wait_for(lambda: len(node.watchdogs()) == 1, what="one watchdog", instead=node.watchdogs)


def test_an_agent_that_starts_after_the_lease_fences_before_anything_else(world: World) -> None:
    node = world.nodes["n1"]
    world.move("n1")
    node.write("n1\n", "open")
    assert node.writer is not None
    kill(node)
    for pid in node.watchdogs():
        os.kill(pid, signal.SIGKILL)
    let_pass(LEASE_S)
    assert node.writer.running
    partition(node)  # the hub must not be needed for it
    node.agent.start()
    assert node.writer.wait_exit(timeout_s=STOP_S) == -signal.SIGKILL
