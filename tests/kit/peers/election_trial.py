"""The trial of elections: claims and attachments of stock sidecars, while the node that serves them fails.

Three nodes reach one storage: three processes of the test driver on one state directory. One round asks for claims,
lets the serving node fail while the sidecars work on them, waits until all are bound, lets the node come back, waits
until all are attached, and then takes everything down. `Figures` has the count of what must not be.
"""

import re
import signal
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import combinations, count
from pathlib import Path
from typing import Any, Self

from common.csi import csi_pb2 as csi
from tests.kit.bridge import Agent, Bridge, Proxy
from tests.kit.operator import hub_state
from tests.kit.peers import manifests
from tests.kit.peers.claims import Claims
from tests.kit.peers.sidecars import Sidecars
from tests.kit.peers.testdriver import RunningDriver, start_testdriver
from tests.kit.processes import Process, Supervisor, listens_on
from tests.kit.requests import create
from tests.kit.waiting import NeverCameError, wait_for
from tests.lab.remote import RemoteLink

NODES = ("n1", "n2", "n3")

TAKEOVER_S = 5.0
"""More than one and a half times the keepalive (`tests.kit.bridge`), after which a link counts as silent."""

LEASE_S = 5

_SOON = (
    "--retry-interval-start=500ms",
    "--retry-interval-max=2s",
    "--timeout=15s",
    "--kube-api-qps=100",
    "--kube-api-burst=200",
)
"""The sidecars' patience with a failure, whose default grows to 5 minutes, and the room for their own requests."""

_FEW = "--worker-threads=5"  # with few workers the provisioner still has claims to begin when the fault comes

_SLOW = ("CreateVolume=delay:300ms", "ControllerPublishVolume=delay:150ms")  # so that some work is always under way

_MAY_RETRY = {"Unavailable", "DeadlineExceeded", "Aborted", "Canceled"}
"""The codes after which the sidecars ask again, and take nothing for certain."""

_MOUNT = csi.VolumeCapability(mount={}, access_mode={"mode": "SINGLE_NODE_WRITER"})

_PROBE_S = 0.2

_LIMIT_S = 120.0


@dataclass
class Figures:
    """The outcome of the rounds."""

    rounds: int = 0  # how many were run
    claims: int = 0  # all claims of them
    lost: list[str] = field(default_factory=list)  # bound claims whose volume the storage does not have
    # Volumes that no claim has, and names on which two nodes worked at one time.
    doubled: list[str] = field(default_factory=list)
    wrong_codes: set[str] = field(default_factory=set)  # final codes that sidecars got and the driver never sent
    # By round, from the fault to the first answer to a call that no node had under way.
    waits_s: list[float] = field(default_factory=list)
    all_bound_s: list[float] = field(default_factory=list)  # by round, from the fault until all claims were bound

    def __str__(self) -> str:
        waits = f"{statistics.median(self.waits_s):.1f} s | {max(self.waits_s):.1f} s"
        bound = f"{statistics.median(self.all_bound_s):.1f} s | {max(self.all_bound_s):.1f} s"
        wrong = f"{len(self.lost)} | {len(self.doubled)} | {len(self.wrong_codes)}"
        return f"| {self.rounds} | {self.claims} | {wrong} | {waits} | {bound} |"


@dataclass
class Node:
    """One node: its agent, its driver, and its link to the hub."""

    agent: Agent
    driver: RunningDriver
    link: RemoteLink

    def stop_driver(self) -> None:
        self.driver.process.kill()

    def start_driver(self) -> None:
        process = self.driver.process
        if not process.running:
            process.start()
            process.wait_until(lambda: listens_on(self.driver.socket))


def _kill(node: Node) -> None:
    node.agent.kill()
    node.stop_driver()


def _start(node: Node) -> None:
    node.start_driver()
    node.agent.start()


FAULTS: dict[str, tuple[Callable[[Node], None], Callable[[Node], None]]] = {
    "killed": (_kill, _start),
    "cut off": (lambda node: void(node.link.command("stall both")), lambda node: void(node.link.command("heal"))),
    "drained": (lambda node: node.agent.stop(), lambda node: node.agent.start()),
    "stopped": (
        lambda node: node.agent.process.signal(signal.SIGSTOP),
        lambda node: node.agent.process.signal(signal.SIGCONT),
    ),
}
"""What happens to the serving node, and what ends it. "killed": agent and driver by SIGKILL. "stopped": SIGSTOP."""


def void(_: object) -> None:
    """Return nothing."""


class Trial:
    """Three nodes, the stock provisioner and attacher, and rounds of one fault."""

    def __init__(
        self, bridge: Bridge, supervisor: Supervisor, claims: Claims, sidecars: Sidecars, directory: Path
    ) -> None:
        """Start all processes, and wait until a node serves."""
        self._bridge, self._claims, self._api = bridge, claims, claims.api
        self._name, self._at = claims.storage_class, directory
        shared = directory / "storage"
        shared.mkdir()
        bridge.start_hub(f"--takeover-after={TAKEOVER_S:g}s")
        self._nodes = {name: self._add_node(name, supervisor, shared) for name in NODES}
        self._proxy: Proxy = bridge.start_proxy(self._name, "--placement=shared")
        bridge.wait_routed(self._proxy.sidecar())
        self._sidecars: list[Process] = [
            sidecars.start("csi-provisioner", self._proxy.socket, *_SOON, _FEW),
            sidecars.start("csi-attacher", self._proxy.socket, *_SOON),
        ]
        self._worker = f"w-{claims.namespace}"
        self._api.create(manifests.node(self._worker))
        self._api.create(manifests.csi_node(self._worker, drivers={self._name: NODES[0]}))
        self.figures = Figures()

    def _add_node(self, name: str, supervisor: Supervisor, shared: Path) -> Node:
        directory = self._at / name
        directory.mkdir()
        flags = ("--no-topology", "--no-stage", *(f"--fault={fault}" for fault in _SLOW))
        driver = start_testdriver(
            supervisor, directory, name=self._name, node_id=name, flags=flags, shared_state=shared
        )
        link = self._bridge.start_link()
        lease = (f"--controller-lease={LEASE_S}s",)
        return Node(self._bridge.start_agent(name, driver.socket, flags=lease, through=link.address), driver, link)

    def election(self) -> dict[str, Any]:
        (found,) = hub_state(self._bridge.hub.uds)["elections"]
        return dict(found)

    def round(self, fault: str, *, claims: int) -> None:
        happens, ends = FAULTS[fault]
        names = [f"data-{self.figures.rounds}-{number}" for number in range(claims)]
        others = len(NODES) - 1
        wait_for(lambda: len(self.election()["standby"]) == others, what="standby nodes", timeout_s=_LIMIT_S)
        serving = self._nodes[self.election()["node"]]
        before = len(serving.driver.calls("CreateVolume"))
        for name in names:
            self._claims.ask(name)
        with _Attaching(self, names) as attaching:
            wait_for(lambda: len(serving.driver.calls("CreateVolume")) >= before + 5, what="work of the serving node")
            wait_for(lambda: attaching.asked, what="attachment")
            with _Probing(self._proxy, serving.driver, self.figures.rounds) as probing:
                began = time.monotonic()
                happens(serving)
                try:
                    handles = [self._handle(name) for name in names]
                    self.figures.all_bound_s.append(time.monotonic() - began)
                    # On a busy machine a late fault finds most claims bound, and the rest are bound without a takeover.
                    wait_for(lambda: probing.answered, what="answer of another node", timeout_s=_LIMIT_S)
                finally:
                    ends(serving)
            attaching.wait_all()
        self.figures.waits_s.append(probing.first_answer - began)
        self._count(handles, probing)
        self._take_down(names, probing)
        self.figures.rounds += 1
        self.figures.claims += claims

    def _handle(self, name: str) -> str:
        return str(self._claims.wait_bound(name, timeout_s=_LIMIT_S)["spec"]["csi"]["volumeHandle"])

    def _count(self, handles: list[str], probing: "_Probing") -> None:
        there = {path.name for path in self._nodes[NODES[0]].driver.directories()}
        known = {*handles, *probing.made}
        self.figures.lost += sorted(set(handles) - there)
        self.figures.doubled += [handle for handle, times in Counter(handles).items() if times > 1]
        self.figures.doubled += sorted(there - known)
        self.figures.doubled += self._beside()

    def _beside(self) -> list[str]:
        """The names and ids on which two nodes worked at one time, in this round or an earlier one."""
        found = set()
        for (_, one), (_, other) in combinations(self._nodes.items(), 2):
            for method, key in (("CreateVolume", "name"), ("DeleteVolume", "volume_id")):
                spans = {it.fields[key]: it for it in one.driver.calls(method)}
                for call in other.driver.calls(method):
                    mine = spans.get(call.fields[key])
                    # A call without an end was that of a killed process.
                    if (
                        mine is not None
                        and mine.start < (call.end or call.start)
                        and call.start < (mine.end or mine.start)
                    ):
                        found.add(call.fields[key])
        return sorted(found)

    def _take_down(self, names: list[str], probing: "_Probing") -> None:
        for name in names:
            self._api.delete("VolumeAttachment", name)
        for name in names:
            self._api.wait_gone("VolumeAttachment", name, timeout_s=_LIMIT_S)
        for name in names:
            self._api.delete("PersistentVolumeClaim", name, namespace=self._claims.namespace)
        probing.delete_all()
        driver = self._nodes[NODES[0]].driver
        wait_for(lambda: not driver.directories(), what="empty storage", timeout_s=_LIMIT_S, instead=driver.directories)
        for name in names:
            self._api.wait_gone("PersistentVolumeClaim", name, namespace=self._claims.namespace)
        wait_for(lambda: not self._volumes(), what="end of the PersistentVolumes", timeout_s=_LIMIT_S)

    def _volumes(self) -> list[str]:
        found = [it for it in self._api.all("PersistentVolume") if it["spec"]["storageClassName"] == self._name]
        return [it["metadata"]["name"] for it in found]

    def finish(self) -> Figures:
        """The figures, with the codes that the sidecars have seen in all rounds."""
        told = {code for it in self._sidecars for code in re.findall(r"rpc error: code = (\w+)", it.output())}
        sent = {
            call.code.title().replace("_", "")
            for node in self._nodes.values()
            for method in ("CreateVolume", "DeleteVolume", "ControllerPublishVolume", "ControllerUnpublishVolume")
            for call in node.driver.calls(method)
        }
        self.figures.wrong_codes = told - _MAY_RETRY - sent
        return self.figures

    def attach(self, name: str) -> bool:
        """Ask for the attachment of a claim's volume. Returns False while it has none."""
        claim = self._api.get("PersistentVolumeClaim", name, namespace=self._claims.namespace)
        if claim is None or claim["status"]["phase"] != "Bound":
            return False
        volume = claim["spec"]["volumeName"]
        self._api.create(manifests.volume_attachment(name, driver=self._name, node=self._worker, volume=volume))
        return True

    def wait_attached(self, name: str) -> None:
        self._api.wait_status("VolumeAttachment", name, "attached", timeout_s=_LIMIT_S)


def _create(name: str) -> csi.CreateVolumeRequest:
    return create(name, volume_capabilities=[_MOUNT])


class _Attaching:
    """Asks for the attachment of each claim's volume once it is bound, in a thread."""

    def __init__(self, trial: Trial, names: list[str]) -> None:
        self.asked: list[str] = []  # the claims whose attachment was asked for
        self._trial, self._waiting = trial, list(names)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="attach-detach controller")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def wait_all(self) -> None:
        wait_for(lambda: not self._waiting, what="attachment of each claim", timeout_s=_LIMIT_S)
        for name in self.asked:
            self._trial.wait_attached(name)

    def _run(self) -> None:
        while self._waiting and not self._over.wait(0.1):
            for name in list(self._waiting):
                if self._trial.attach(name):
                    self._waiting.remove(name)
                    self.asked.append(name)


class _Probing:
    """Asks for a volume of a new name again and again: a call that no node had under way when the fault came."""

    def __init__(self, proxy: Proxy, failing: RunningDriver, number: int) -> None:
        self.made: list[str] = []  # the ids of the volumes of the probes, after the block
        # When another node than the failing one first answered, in seconds of the monotonic clock.
        self.first_answer = float("inf")
        self._sidecar, self._failing, self._number = proxy.sidecar(), failing, number
        self._over = threading.Event()
        self._names: list[str] = []
        self._threads: list[threading.Thread] = []
        self._driver = threading.Thread(target=self._run, name="probes")

    @property
    def answered(self) -> bool:
        return self.first_answer < float("inf")

    def __enter__(self) -> Self:
        self._driver.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._driver.join()
        for thread in self._threads:
            thread.join()
        self.made = [self._make(name) for name in self._names]

    def delete_all(self) -> None:
        for handle in self.made:
            self._until_ok("DeleteVolume", csi.DeleteVolumeRequest(volume_id=handle))

    def _run(self) -> None:
        for number in count():
            if self.answered or self._over.is_set():
                return
            name = f"probe-{self._number}-{number}"
            self._names.append(name)
            thread = threading.Thread(target=self._probe, args=(name,), name=name)
            self._threads.append(thread)
            thread.start()
            self._over.wait(_PROBE_S)

    def _probe(self, name: str) -> None:
        began = time.monotonic()
        while not self._over.is_set() and time.monotonic() < began + _LIMIT_S:
            if self._sidecar.call("CreateVolume", _create(name), timeout_s=10.0).ok:
                if name not in {call.fields["name"] for call in self._failing.calls("CreateVolume")}:
                    self.first_answer = min(self.first_answer, time.monotonic())
                return
            self._over.wait(_PROBE_S)

    def _make(self, name: str) -> str:
        return str(self._until_ok("CreateVolume", _create(name)).volume.volume_id)

    def _until_ok(self, method: str, request: Any) -> Any:
        end = time.monotonic() + _LIMIT_S
        while True:
            outcome = self._sidecar.call(method, request, timeout_s=10.0)
            if outcome.ok:
                return outcome.answer
            if time.monotonic() > end:
                raise NeverCameError(f"{method}: {outcome.refusal}")
            time.sleep(_PROBE_S)
