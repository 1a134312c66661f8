"""A bridge for tests: hub, proxy drivers and edge agents as child processes of the real command, on one machine.

    with Bridge(short_dir, tmp_path) as bridge:
        bridge.start_hub()
        bridge.start_agent("n1", vendor.socket)
        sidecar = bridge.start_proxy("vendor.test")
        bridge.wait_routed(sidecar)

Times are short and ports are free ones. State and sockets are in a directory whose path fits a UNIX socket. Every
member can be killed, stopped and started again; its state and its addresses stay.

The test fails if a member logged a traceback, or a complaint of asyncio, that `bridge.foresee(text)` did not declare.
"""

import contextlib
import json
import signal
import socket
from collections.abc import Callable, Iterable, Sequence
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Self

from tests.kit.ports import free_ports
from tests.kit.prefork import PROGRAM as _PROGRAM
from tests.kit.processes import Process, listens_on
from tests.kit.sidecar import Sidecar
from tests.kit.waiting import wait_for
from tests.lab.remote import RemoteLink

_TIMES = ("--keepalive=3s", "--hello-timeout=5s", "--drain-timeout=20s", "--log-format=json")
"""A dead link is noticed within 6 s. It could be less, but on a busy machine a process may not run for a while."""

PATIENT = (
    "--leader-election-namespace=csi-bridge",
    "--leader-election-lease-duration=10m",
    "--leader-election-renew-deadline=9m",
)
"""Of a hub that follows a cluster: a test may stop its API server for a while."""

REDIAL_LIMIT_S = 60.0  # an uplink dials at least every 30 s (`common.links.uplink`), and the machine may be busy


class UnforeseenError(AssertionError):
    """Members logged undeclared complaints; the message has the lines."""


class Member:
    """One process of the bridge."""

    def __init__(self, name: str, command: Sequence[object], logs: Path, *, ready: Callable[[], bool]) -> None:
        self.process = Process(name, command, log=logs / f"{name}.log")  # the process, in all its lives
        self._ready = ready

    def start(self, *, wait: bool = True) -> None:
        """Start it, again if it ran before, and wait until it serves."""
        self.process.start()
        if wait:
            self.wait_ready()

    def wait_ready(self) -> None:
        self.process.wait_until(self._ready, what="being ready")

    def kill(self) -> None:
        self.process.kill()

    def ask_to_stop(self) -> None:
        self.process.signal(signal.SIGTERM)

    def stop(self) -> None:
        """Ask it to stop and wait; kill it if it does not end."""
        self.process.stop()

    def logged(self, message: str) -> list[dict[str, Any]]:
        """Return its log lines, of all its lives, whose message or call status contains a text."""
        return _about(message, self.lines())

    def audited(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.lines() if line.get("event") == event]

    def lines(self) -> list[dict[str, Any]]:
        """Return its log lines. A line that is no JSON is a fault of the process."""
        return [json.loads(line) for line in self.process.settled_lines()]

    def complaints(self) -> list[str]:
        """Return its lines with a traceback, of asyncio, or in no log format: each is a bug in any test."""
        return [line for line in self.process.output().splitlines() if _complains(line)]

    def wait_logged(self, message: str, *, times: int = 1, timeout_s: float = REDIAL_LIMIT_S) -> None:
        wait_for(
            lambda: len(_about(message, map(json.loads, self.process.lines()))) >= times,
            what=f"log line {message!r} of {self.process.name}",
            timeout_s=timeout_s,
            instead=self.process.log_tail,
        )


def _about(message: str, lines: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [line for line in lines if message in line["msg"] or message in line.get("status", "")]


class Hub(Member):
    """The hub."""

    http: str = ""  # the address of `--http`; empty: it has none

    def __init__(
        self,
        directory: Path,
        logs: Path,
        flags: Sequence[str],
        *,
        sockets: Sequence[Path] = (),
        host: str = "127.0.0.1",
    ) -> None:
        (port,) = free_ports(1)
        self.uds = directory / "hub.sock"  # its UNIX socket
        self.address = f"{host}:{port}"  # the address for agents, `host:port`
        command = [
            _PROGRAM,
            "hub",
            f"--uds=unix://{self.uds}",
            f"--listen={self.address}",
            "--insecure",
            f"--state-dir={directory / 'hub'}",
            *_TIMES,
            *PATIENT,
            *flags,
        ]
        where = (self.uds, (host, port), *sockets)
        super().__init__("hub", command, logs, ready=lambda: all(map(listens_on, where)))


class Agent(Member):
    """An edge agent."""

    def __init__(
        self, node: str, hub: str, sockets: Sequence[Path], directory: Path, logs: Path, flags: Sequence[str]
    ) -> None:
        self.node = node
        self.socket = directory / f"{node}.sock"  # its status socket
        command = [
            _PROGRAM,
            "edge",
            "run",
            f"--node={node}",
            *_unless(flags, f"--hub=ws://{hub}"),
            "--insecure",
            *(f"--driver=unix://{path}" for path in sockets),
            f"--state-dir={directory / node}",
            f"--status=unix://{self.socket}",
            f"--root-dir={directory / f'{node}-kubelet'}",
            *_TIMES,
            *flags,
        ]
        super().__init__(f"agent-{node}-{directory.name}", command, logs, ready=lambda: listens_on(self.socket))

    def status(self) -> dict[str, Any]:
        with contextlib.closing(_UnixConnection(self.socket)) as connection:
            connection.request("GET", "/status")
            state: dict[str, Any] = json.loads(connection.getresponse().read())
        return state

    def wait_connected(self, connected: bool = True) -> None:
        """Wait until its link to the hub is up, or down."""
        wait_for(
            lambda: self.status()["connected"] is connected,
            what=f"link of {self.node}" if connected else f"end of the link of {self.node}",
            timeout_s=REDIAL_LIMIT_S,
            instead=self.process.log_tail,
        )


class Proxy(Member):
    """A proxy driver."""

    def __init__(
        self, driver: str, hub: str, node: str | None, directory: Path, logs: Path, flags: Sequence[str]
    ) -> None:
        directory.mkdir()
        self.socket = directory / "csi.sock"
        self.cache = directory / "state" / f"identity-{driver}.json"  # the file with the driver's Identity
        command = [
            _PROGRAM,
            "driver",
            f"--drivername={driver}",
            f"--endpoint=unix://{self.socket}",
            *_unless(flags, f"--hub-endpoint={hub}"),
            f"--state-dir={self.cache.parent}",
            *([f"--nodeid={node}"] if node else []),
            *_TIMES,
            *flags,
        ]
        super().__init__(f"proxy-{directory.name}", command, logs, ready=lambda: listens_on(self.socket))
        self._sidecars: list[Sidecar] = []

    @property
    def linked(self) -> bool:
        """Whether its latest log line about its link to the hub says that the link is up."""
        said = self.logged("link to the hub at")
        return bool(said) and " is up " in said[-1]["msg"]

    def sidecar(self) -> Sidecar:
        """Return a new connection to its CSI socket; the bridge closes it."""
        sidecar = Sidecar(self.socket)
        self._sidecars.append(sidecar)
        return sidecar

    def hang_up(self) -> None:
        for sidecar in self._sidecars:
            sidecar.close()


class Served(Proxy):
    """A proxy driver inside the hub's process: it starts, stops and logs with the hub."""

    def __init__(self, driver: str, hub: Hub, socket_path: Path) -> None:
        self.socket = socket_path
        self.process, self._ready = hub.process, hub._ready
        self._sidecars = []


class Bridge:
    """The members, and the links between them."""

    hub: Hub  # the hub, once it was started

    def __init__(self, directory: Path, logs: Path, *, serves: str = "") -> None:
        """Make a bridge without members.

        Args:
            directory: for sockets and state, with a short path.
            logs: for the members' logs.
            serves: a driver whose proxy driver runs inside the hub. `start_proxy` then returns that one first.
        """
        self.serves = serves  # the driver whose proxy driver runs inside the hub; empty: none
        self._directory, self._logs = directory, logs
        self.members: list[Member] = []
        self.links: list[RemoteLink] = []  # the lab links that agents dial through
        self._proxies: list[Proxy] = []
        self._served: Served | None = None
        self._foreseen: list[str] = []

    def start_hub(self, *flags: str, host: str = "127.0.0.1") -> Hub:
        """Start the hub; agents dial it at an address of `host`."""
        path = self._directory / "served.sock"
        if self.serves:
            flags = (f"--serve={self.serves}=unix://{path}", *flags)
        self.hub = Hub(self._directory, self._logs, flags, sockets=[path] if self.serves else [], host=host)
        self._start(self.hub)
        if self.serves:
            self._served = Served(self.serves, self.hub, path)
            self._proxies.append(self._served)
        return self.hub

    def start_agent(
        self,
        node: str,
        *sockets: Path,
        flags: Sequence[str] = (),
        through: str | None = None,
        within: Sequence[str] = (),
        wait: bool = True,
    ) -> Agent:
        """Start an agent with the vendors' sockets.

        Args:
            sockets: the sockets for its `--driver` flags.
            flags: further flags. Those named --hub stand in place of the hub of this bridge.
            through: the address of a lab link to the hub.
            within: the words before its command, for instance a control group's.
            wait: wait until it serves; False: something else can start meanwhile.
        """
        agent = Agent(node, through or self.hub.address, sockets, self._directory, self._logs, flags)
        agent.process.command[:0] = within
        self._start(agent, wait=wait)
        return agent

    def start_rival(self, node: str, *sockets: Path) -> Agent:
        """Start another machine's agent under a name in use, with a state directory of its own."""
        directory = self._directory / "rival"
        directory.mkdir(exist_ok=True)
        agent = Agent(node, self.hub.address, sockets, directory, self._logs, ())
        self._start(agent)
        return agent

    def start_proxy(self, driver: str, *flags: str, node: str | None = None, cache: bytes | None = None) -> Proxy:
        """Start a proxy driver; `cache` is the content of its cache file from an earlier life.

        Flags named --hub-endpoint stand in place of the hub of this bridge.
        If the hub serves the driver, the first one is that inside the hub.
        """
        if self._served is not None and driver == self.serves:
            served, self._served = self._served, None
            return served
        directory = self._directory / f"p{len(self._proxies)}"
        proxy = Proxy(driver, f"unix://{self.hub.uds}", node, directory, self._logs, flags)
        self._proxies.append(proxy)
        if cache is not None:
            proxy.cache.parent.mkdir()
            proxy.cache.write_bytes(cache)
        self._start(proxy)
        return proxy

    def start_double(self, proxy: Proxy) -> Member:
        """Start a second process with the flags of a proxy driver."""
        double = Member(
            f"{proxy.process.name}-double{len(self.members)}",
            proxy.process.command,
            self._logs,
            ready=lambda: any(line["msg"].startswith("serving ") for line in double.lines()),
        )
        self._start(double)
        return double

    def start_link(self, *, to: Hub | None = None) -> RemoteLink:
        link = RemoteLink(to=(to or self.hub).address)
        self.links.append(link)
        return link

    def wait_routed(self, sidecar: Sidecar) -> None:
        said: list[object] = []

        def look() -> bool:
            outcome = sidecar.call("GetCapacity")
            said[:] = [outcome.refusal]
            return outcome.ok

        wait_for(
            look,
            what="answer of the vendor's through the bridge",
            timeout_s=REDIAL_LIMIT_S,
            instead=lambda: f"{said}\n{self.log_tails()}",
        )

    def wait_linked(self, proxy: Proxy, *, linked: bool = True) -> None:
        wait_for(
            lambda: proxy.linked is linked,
            what=f"link of {proxy.process.name}" if linked else f"end of the link of {proxy.process.name}",
            timeout_s=REDIAL_LIMIT_S,
            instead=proxy.process.log_tail,
        )

    def log_tails(self) -> str:
        return "\n".join(member.process.log_tail() for member in self.members)

    def foresee(self, text: str) -> None:
        """Declare that lines with this text may carry a traceback, because the test provokes them."""
        self._foreseen.append(text)

    def complaints(self) -> list[str]:
        return [
            f"{member.process.name}: {line}"
            for member in self.members
            for line in member.complaints()
            if not any(text in line for text in self._foreseen)
        ]

    def stop(self) -> None:
        for proxy in self._proxies:
            proxy.hang_up()
        for member in reversed(self.members):
            member.kill()
        for link in self.links:
            link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, failure: object, *_: object) -> None:
        self.stop()
        if failure is None and (complaints := self.complaints()):
            raise UnforeseenError("\n".join(complaints))

    def _start(self, member: Member, *, wait: bool = True) -> None:
        self.members.append(member)
        member.start(wait=wait)


def _unless(flags: Sequence[str], flag: str) -> list[str]:
    """A flag that a test's own flags of this name replace, however many there are."""
    return [] if any(it.startswith(flag.partition("=")[0] + "=") for it in flags) else [flag]


def _complains(line: str) -> bool:
    # Inside a JSON text the quotes would be escaped, so these are keys.
    return not line.startswith("{") or '"exc":' in line or '"logger":"asyncio"' in line


class _UnixConnection(HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("edge", timeout=10.0)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))
