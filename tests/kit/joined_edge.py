"""A bridge with certificates: a hub that signs, and nodes that join it with the real commands.

with JoinBridge(short_dir, tmp_path) as bridge:
    bridge.start_hub()
    node = bridge.node("n1")
    node.join(bridge.token("--node=n1"))
    agent = bridge.start_joined(node, vendor.socket)
"""

import os
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from common.store.fault_points import VARIABLE
from edge.identity.identity import Identity
from tests.kit import prefork
from tests.kit.bridge import Agent, Bridge, Hub
from tests.kit.certificates import Authority
from tests.kit.ports import free_ports


@dataclass(frozen=True)
class Node:
    """A machine that may join."""

    name: str
    state_dir: Path  # its agent's state directory

    def join(
        self, token: str, *flags: str, fault_point: str = "", environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run `edge join` with a token on standard input, and with more variables; with a fault point it dies there."""
        words = ("edge", "join", f"--node={self.name}", f"--state-dir={self.state_dir}", *flags, "-")
        environment = {**os.environ, VARIABLE: fault_point, **(environment or {})}
        return prefork.run(*words, given=token, environment=environment)

    def make_due(self) -> None:
        """Let its certificate of a minute look old enough to be renewed when the agent looks next."""
        path = Identity(self.state_dir).files.cert
        os.utime(path, (path.stat().st_atime, time.time() - 250.0))


class _JoinedAgent(Agent):
    """An agent that gets its node, its hub and its certificate from the join alone."""

    def __init__(self, node: Node, sockets: Sequence[Path], directory: Path, logs: Path, flags: Sequence[str]) -> None:
        super().__init__(node.name, "", sockets, directory, logs, ())
        skipped = ("--node=", "--hub=", "--insecure", "--state-dir=")
        command = [word for word in self.process.command if not word.startswith(skipped)]
        self.process.command = [*command, f"--state-dir={node.state_dir}", *flags]


class JoinBridge(Bridge):
    """A bridge whose hub has certificates, and a join listener.

    Attributes:
        join_port: the port of the join listener.
    """

    def __init__(self, directory: Path, logs: Path) -> None:
        super().__init__(directory, logs)
        self.authority = Authority(directory)  # the CA of the bridge
        (self.join_port,) = free_ports(1)
        self._joined = 0

    def start_hub(self, *flags: str, names: Iterable[str] = ()) -> Hub:
        """Start the hub; `names` are further ones in its certificate."""
        joining = [f"--ca-key={self.authority.key_path}", f"--join-listen=127.0.0.1:{self.join_port}"]
        return super().start_hub(*self.authority.hub(names=names).flags, *joining, *flags)

    def token(self, *flags: str) -> str:
        return self.operate("token", "create", *flags).strip().splitlines()[-1]

    def operate(self, *words: str) -> str:
        """Run a command of an operator that succeeds, and return its output."""
        done = prefork.run(*words, f"--hub=unix://{self.hub.uds}")
        assert done.returncode == 0, done.stderr
        return done.stdout

    def node(self, name: str) -> Node:
        self._joined += 1
        return Node(name, self._directory / f"joined-{self._joined}")

    def start_joined(self, node: Node, *sockets: Path, flags: Sequence[str] = (), wait: bool = True) -> Agent:
        """Start the agent of a node that has joined."""
        directory = self._directory / f"run-{len(self.members)}"
        directory.mkdir()
        agent = _JoinedAgent(node, sockets, directory, self._logs, flags)
        self._start(agent, wait=wait)
        return agent
