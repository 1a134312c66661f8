"""The site of a chaos run: two hubs, three nodes, an API server and all links between them, each of which can fail.

Each node has a driver with storage of its own, and one of a storage that all nodes reach. Whatever ends is started
again, as a kubelet or systemd would.
"""

import contextlib
import json
import signal
import time
from collections.abc import Callable
from pathlib import Path

from tests.chaos.faults import Fault
from tests.chaos.judge import KEYS, Left
from tests.kit.bridge import Agent, Hub, Member, Proxy
from tests.kit.deployed import hub_roles
from tests.kit.peers.cluster_node import HUB
from tests.kit.peers.control_plane import ControlPlane
from tests.kit.peers.testdriver import RunningDriver, start_testdriver
from tests.kit.processes import Process, Supervisor
from tests.kit.small_disk import fill, make_room, small_disk
from tests.kit.testdriver.call_log import Call, read_calls
from tests.kit.waiting import wait_for
from tests.lab.remote import RemoteLink

NODES = ("n1", "n2", "n3")

LOCAL, SHARED = "local.chaos.csi", "shared.chaos.csi"

_HUBS = ("hub-a", "hub-b")

_HUB_FLAGS = (
    "--leader-election-lease-duration=4s",
    "--leader-election-renew-deadline=3s",
    "--leader-election-retry-period=1s",
    "--takeover-after=5s",
)

_AGENT_FLAGS = ("--controller-lease=5s", "--operation-limit=20s")

_WORK = "200ms"  # the time that a driver takes for each call, so that some are under way at each fault

_RESTART_S = 0.5  # the time between the end of a process that nobody killed and its next start


class Site:
    """All processes and links.

    Attributes:
        plane: the control plane.
        targets: what may fail, by the kinds of `tests.chaos.faults`.
    """

    def __init__(self, directory: Path, logs: Path, peer: Callable[[str], Path]) -> None:
        """Start everything, and wait until calls pass.

        Args:
            directory: for sockets and state; its path must be short.
            logs: for logs, which stay.
            peer: finds a peer's binary by name.
        """
        self._at, self._logs = directory, logs
        self._stack = contextlib.ExitStack()
        self._processes: dict[str, Process] = {}
        self._asleep: dict[str, float] = {}
        self._links: dict[str, list[RemoteLink]] = {}
        self._disks: dict[str, Path] = {}
        self._members: list[Member] = []
        self.drivers: dict[str, RunningDriver] = {}  # the drivers, by name and node: `n1/local.chaos.csi`
        self.proxies: dict[str, Proxy] = {}  # by driver
        try:
            self._start(peer)
        except BaseException:
            self.stop()
            raise

    def _start(self, peer: Callable[[str], Path]) -> None:
        (self._at / "plane").mkdir()
        self.plane = ControlPlane(self._at / "plane", peer=peer)
        self._stack.callback(self.plane.stop)
        self.plane.start()
        self.plane.controller_manager.stop()  # nothing here needs it
        self._processes["api"] = self.plane.api_server
        self.plane.apply(hub_roles())
        kubeconfig = self.plane.service_account_kubeconfig("csi-bridge", HUB)
        addresses = [self._start_hub(name, kubeconfig) for name in _HUBS]
        (self._at / "shared").mkdir()
        for node in NODES:
            self._start_node(node, addresses)
        for driver, placement in ((LOCAL, "local"), (SHARED, "shared")):
            self._start_proxy(driver, placement, addresses)
        for proxy in self.proxies.values():
            sidecar = proxy.sidecar()
            wait_for(lambda it=sidecar: it.call("GetCapacity").ok, what="answer", instead=proxy.process.log_tail)
        self.targets = {
            "hub": _HUBS,
            "agent": NODES,
            "proxy": tuple(f"proxy/{driver}" for driver in self.proxies),
            "vendor": tuple(self.drivers),
            "link": tuple(it for it in self._links if not it.endswith("-api")),
            "api link": tuple(it for it in self._links if it.endswith("-api")),
            "api": ("api",),
            "disk": tuple(self._disks),
        }

    def _start_hub(self, name: str, kubeconfig: Path) -> str:
        link = self._link(f"{name}-api", self.plane.url.removeprefix("https://"))
        own = self._at / f"{name}.kubeconfig"
        own.touch(mode=0o600)
        own.write_text(kubeconfig.read_text().replace(self.plane.url, f"https://{link.address}"))
        hub = Hub(self._place(name), self._place(name, self._logs), (f"--kubeconfig={own}", *_HUB_FLAGS))
        self._keep(name, hub)
        hub.start(wait=False)
        return hub.address

    def _start_node(self, node: str, hubs: list[str]) -> None:
        place, logs = self._place(node), self._place(node, self._logs)
        sockets = []
        for driver in (LOCAL, SHARED):
            own = place / driver.partition(".")[0]
            own.mkdir()
            supervisor = self._stack.enter_context(Supervisor(logs / own.name))
            flags = tuple(f"--fault={method}=delay:{_WORK}" for method in KEYS)
            how = {"shared_state": self._at / "shared"} if driver == SHARED else {}
            more = ("--no-topology",) if driver == SHARED else ()
            running = start_testdriver(supervisor, own, name=driver, node_id=node, flags=(*flags, *more), **how)
            self.drivers[f"{node}/{driver}"], self._processes[f"{node}/{driver}"] = running, running.process
            sockets.append(running.socket)
        disk = self._stack.enter_context(small_disk(place / node, "size=16M,mode=0700"))
        self._disks[f"{node}/disk"] = disk
        flags = [f"--hub=ws://{address}" for address in self._link_to_each(node, hubs)]
        agent = Agent(node, "", sockets, place, logs, (*flags, *_AGENT_FLAGS))
        self._keep(node, agent)
        agent.start(wait=False)

    def _start_proxy(self, driver: str, placement: str, hubs: list[str]) -> None:
        name = f"proxy/{driver}"
        flags = [f"--hub-endpoint=ws://{address}" for address in self._link_to_each(name, hubs)]
        flags += [f"--placement={placement}", "--insecure"]
        proxy = Proxy(driver, "", None, self._at / driver, self._logs, flags)
        self.proxies[driver] = proxy
        self._keep(name, proxy)
        proxy.start(wait=False)

    def _place(self, name: str, below: Path | None = None) -> Path:
        found = (below or self._at) / name
        found.mkdir()
        return found

    def _keep(self, name: str, member: Member) -> None:
        self._members.append(member)
        self._processes[name] = member.process
        self._stack.callback(member.kill)

    def _link(self, name: str, to: str) -> RemoteLink:
        link = self._stack.enter_context(RemoteLink(to=to))
        self._links[name] = [link]
        return link

    def _link_to_each(self, name: str, hubs: list[str]) -> list[str]:
        """Make a link to each hub; each may fail, or all together. Returns their addresses."""
        links = [self._link(f"{name}-{hub}", address) for hub, address in zip(_HUBS, hubs, strict=True)]
        self._links[f"{name}-hubs"] = links
        return [link.address for link in links]

    def begin(self, fault: Fault) -> None:
        """Let a fault happen."""
        match fault.what.split():
            case ["kill"]:
                self._processes[fault.whom].kill()
                self._asleep[fault.whom] = time.monotonic() + fault.lasts_s
            case ["term"]:
                self._processes[fault.whom].signal(signal.SIGTERM)
                self._asleep[fault.whom] = time.monotonic() + fault.lasts_s
            case ["stop"]:
                self._processes[fault.whom].signal(signal.SIGSTOP)
            case ["full"]:
                fill(self._disks[fault.whom])
            case ["stall" | "cut" | "rebind", *_]:
                for link in self._links[fault.whom]:
                    link.command(fault.what)
            case _:
                self.drivers[fault.whom].set_faults(fault.what)

    def end(self, fault: Fault) -> None:
        """End it; the processes recover by themselves."""
        match fault.what.split():
            case ["kill" | "term" | "rebind"]:
                pass
            case ["stop"]:
                self._processes[fault.whom].signal(signal.SIGCONT)
            case ["full"]:
                make_room(self._disks[fault.whom])
            case ["stall" | "cut", *_]:
                for link in self._links[fault.whom]:
                    link.command("heal")
            case _:
                self.drivers[fault.whom].set_faults()

    def keep(self) -> None:
        """Start again what has ended; called again and again, from the thread that made the site."""
        for name, process in self._processes.items():
            if not process.running:
                at = self._asleep.setdefault(name, time.monotonic() + _RESTART_S)
                if time.monotonic() >= at:
                    process.start()
            elif self._asleep.get(name, 0.0) < time.monotonic():
                self._asleep.pop(name, None)

    def journals(self) -> dict[str, list[Call]]:
        return {name: read_calls(driver.own / "calls.jsonl") for name, driver in self.drivers.items()}

    def left(self) -> list[Left]:
        """Return what is at the drivers, in the records and under way."""
        found = []
        for name, driver in self.drivers.items():
            book = json.loads((driver.state / "state.json").read_text())
            found += [Left(name, it["name"], f"{kind} {key}") for kind in ("volumes", "snapshots")
                      for key, it in book[kind].items()]  # fmt: skip
            found += [Left(name, it["volume_id"], f"{it['kind']} on {it['node']}") for it in book["uses"]]
            names = {key for kind in ("volumes", "snapshots") for key in book[kind]}
            found += [
                Left(name, it.name, "data without a record") for it in driver.directories() if it.name not in names
            ]
        return found

    def claims(self) -> list[Left]:
        """Return the records of what exists or has an unknown outcome."""
        found = [it["spec"] for it in self.plane.api.all("VolumePlacement")]
        return [Left("records", it["name"], str(it)) for it in found if it["state"] in {"open", "made"}]

    def complaints(self) -> list[str]:
        return [f"{it.process.name}: {line}" for it in self._members for line in it.complaints()]

    def stop(self) -> None:
        for proxy in self.proxies.values():
            proxy.hang_up()
        self._stack.close()
