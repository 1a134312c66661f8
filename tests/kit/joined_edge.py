"""A bridge with certificates: a hub that signs, and nodes that join it with the real commands.

with JoinBridge(short_dir, tmp_path) as bridge:
    bridge.start_hub()
    node = bridge.node("n1")
    node.join(bridge.token("--node=n1"))
    agent = bridge.start_joined(node, vendor.socket)
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from common.fault_points import VARIABLE
from tests.kit import prefork
from tests.kit.bridge import Agent, Bridge, Hub
from tests.kit.certificates import Authority
from tests.kit.ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


@dataclass(frozen=True)
class Node:
    """A machine that may join.

    Attributes:
        name: its name.
        state_dir: its agent's state directory.
        prefix: the words before each of its commands, to run them in its network.
    """

    name: str
    state_dir: Path
    prefix: tuple[str, ...] = ()

    def join(self, token: str, *flags: str, fault_point: str = "") -> subprocess.CompletedProcess[str]:
        """Run `edge join` with a token on standard input; with a fault point it dies there."""
        command = [*self.prefix, str(prefork.PROGRAM), "edge", "join", f"--node={self.name}"]
        command += [f"--state-dir={self.state_dir}", *flags, "-"]
        environment = os.environ | {VARIABLE: fault_point}
        return subprocess.run(
            command, input=token, capture_output=True, text=True, timeout=60, check=False, env=environment
        )


class _JoinedAgent(Agent):
    """An agent that gets its node, its hub and its certificate from the join alone."""

    def __init__(self, node: Node, sockets: Sequence[Path], directory: Path, logs: Path, flags: Sequence[str]) -> None:
        super().__init__(node.name, "", sockets, directory, logs, flags)
        skipped = ("--node=", "--hub=", "--insecure", "--state-dir=")
        command = [word for word in self.process.command if not word.startswith(skipped)]
        self.process.command = [*node.prefix, *command, f"--state-dir={node.state_dir}"]


class JoinBridge(Bridge):
    """A bridge whose hub has certificates, and a join listener.

    Attributes:
        authority: the CA of the bridge.
        join_port: the port of the join listener.
    """

    def __init__(self, directory: Path, logs: Path, *, host: str = "127.0.0.1") -> None:
        """Make it without members.

        Args:
            directory: for sockets and state, with a short path.
            logs: for the members' logs.
            host: the address at which its nodes reach the hub.
        """
        super().__init__(directory, logs)
        self.authority = Authority(directory)
        self._host = host
        (self.join_port,) = free_ports(1)
        self._joined = 0

    def start_hub(self, *flags: str) -> Hub:
        pem = self.authority.hub(self._host)
        joining = [f"--ca-key={self.authority.key_path}", f"--join-listen={self._host}:{self.join_port}"]
        self.hub = Hub(self._directory, self._logs, [*pem.flags, *joining, *flags])
        if self._host != "127.0.0.1":  # in a network of the test's own
            port = self.hub.address.rpartition(":")[2]
            self.hub.process.command += [f"--listen=0.0.0.0:{port}", f"--hub-address=wss://{self._host}:{port}"]
        self._start(self.hub)
        return self.hub

    def token(self, *flags: str) -> str:
        return self.operate("token", "create", *flags).strip().splitlines()[-1]

    def operate(self, *words: str) -> str:
        """Run a command of an operator that succeeds, and return its output."""
        where = f"--hub=unix://{self.hub.uds}"
        done = prefork.run(*words, where)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def node(self, name: str, *, prefix: tuple[str, ...] = ()) -> Node:
        self._joined += 1
        return Node(name, self._directory / f"joined-{self._joined}", prefix)

    def start_joined(
        self, node: Node, *sockets: Path, flags: Sequence[str] = (), wait: bool = True, fault_point: str = ""
    ) -> Agent:
        """Start the agent of a node that has joined; with a fault point it dies there."""
        directory = self._directory / f"run-{len(self.members)}"
        directory.mkdir()
        agent = _JoinedAgent(node, sockets, directory, self._logs, flags)
        if fault_point:
            agent.process.environment = os.environ | {VARIABLE: fault_point}
        self._start(agent, wait=wait)
        return agent


def said(done: subprocess.CompletedProcess[Any]) -> str:
    return f"{done.stdout}{done.stderr}"
