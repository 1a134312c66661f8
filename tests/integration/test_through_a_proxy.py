"""A node whose machine reaches the hub through a real HTTP proxy alone: join, link, and each refusal's words."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from tests.kit import needs
from tests.kit.joined_edge import JoinBridge
from tests.kit.operator import by_hand
from tests.kit.ports import free_ports
from tests.kit.processes import Supervisor, listens_on

pytestmark = [needs.skip_without(needs.program("tinyproxy")), pytest.mark.slow]

HOST = "127.1"
"""127.0.0.1 for the proxy. For the agent it is another machine's name: this machine it dials without a proxy."""


class Tinyproxy:
    """A proxy on this machine."""

    def __init__(self, directory: Path, *settings: str) -> None:
        (self._port,) = free_ports(1)
        self.address = f"127.0.0.1:{self._port}"  # `host:port`
        self._processes = Supervisor(directory)
        self._file = directory / f"tinyproxy-{self._port}.conf"
        self._file.write_text("\n".join([f"Port {self._port}", "Listen 127.0.0.1", "LogLevel Connect", *settings, ""]))

    def __enter__(self) -> Self:
        command = [shutil.which("tinyproxy"), "-d", "-c", self._file]
        self._process = self._processes.start("tinyproxy", command, ready=lambda: listens_on(self._port))
        return self

    def __exit__(self, *failure: object) -> None:
        self._processes.stop()

    def connects(self) -> list[str]:
        """The requests for tunnels that it has logged."""
        return [line for line in self._process.lines() if "CONNECT" in line]


@pytest.fixture
def bridge(short_dir: Path, tmp_path: Path) -> Iterator[JoinBridge]:
    with JoinBridge(short_dir, tmp_path) as bridge:
        yield bridge


def test_a_node_joins_and_links_through_a_proxy_with_a_password_and_each_refusal_says_whose_it_is(
    bridge: JoinBridge, short_dir: Path
) -> None:
    hub = bridge.start_hub(f"--join-address=wss://{HOST}:{bridge.join_port}", names=[HOST])
    main_port = hub.address.rpartition(":")[2]
    node = bridge.node("n1")

    def refused(token: str, **variables: str) -> str:
        done = node.join(token, "--timeout=5s", environment=variables)
        assert done.returncode == 1
        return done.stderr

    token = bridge.token("--node=n1")
    allowed = ("BasicAuth ann secret", f"ConnectPort {bridge.join_port}", f"ConnectPort {main_port}")
    with Tinyproxy(short_dir, *allowed) as proxy:
        said = refused(token, HTTPS_PROXY=f"http://ann:wrong@{proxy.address}")
        assert f"the proxy http://{proxy.address} refuses the connection with 401 " in said
        assert "http://USER:PASSWORD@HOST:PORT" in said
        assert "wrong" not in said
        given = f"http://ann:secret@{proxy.address}"
        assert node.join(token, environment={"https_proxy": given}).returncode == 0
        assert len([it for it in proxy.connects() if f"{HOST}:{bridge.join_port}" in it]) >= 2

        agent = bridge.start_joined(node, flags=(f"--hub=wss://{HOST}:{main_port}", f"--proxy={given}"))
        agent.wait_connected()
        assert any(f"{HOST}:{main_port}" in it for it in proxy.connects())
        assert "secret" not in str(agent.status()) + agent.process.output()
    agent.wait_connected(connected=False)
    agent.wait_logged(f"the proxy http://{proxy.address} cannot be reached: ECONNREFUSED")

    with Tinyproxy(short_dir, "ConnectPort 443") as closed:
        said = refused(bridge.token("--node=n1", "--replace"), HTTPS_PROXY=f"http://{closed.address}")
        assert f"the proxy http://{closed.address} refuses the connection with 403 " in said
        agent.process.command = [*agent.process.command, f"--proxy=http://{closed.address}"]
        agent.stop()
        agent.start()
        agent.wait_logged("ask whoever runs it to allow CONNECT")
        doctor = by_hand("doctor", f"--status=unix://{agent.socket}").stdout
        assert "the hub has not heard of this node" in " ".join(doctor.split())

        direct = node.join(
            bridge.token("--node=n1", "--replace"),
            environment={"HTTPS_PROXY": f"http://{closed.address}", "NO_PROXY": f"other.example,{HOST}"},
        )
        assert direct.returncode == 0
