"""The driver of Kubernetes' own e2e tests, as a vendor's driver that nobody here wrote. Its volumes are in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.kit.processes import listens_on

if TYPE_CHECKING:
    from pathlib import Path

    from tests.kit.processes import Process, Supervisor


def start_mock_driver(
    supervisor: Supervisor,
    program: Path,
    socket: Path,
    *,
    name: str = "mock.csi-bridge.io",
    attach: bool = True,
    topology: bool = False,
    node_expansion: bool = False,
    flags: tuple[str, ...] = (),
) -> Process:
    """Start a mock driver and wait until it answers on its socket.

    Args:
        supervisor: who stops it.
        program: the mockdriver binary.
        socket: where it listens.
        name: the driver's name, which is also its node id.
        attach: whether it wants its volumes published to nodes by the controller.
        topology: whether it reports one topology segment for every volume and its node.
        node_expansion: whether every expansion needs the node, too.
        flags: further flags of the program.
    """
    command = [
        program,
        f"--endpoint=unix://{socket}",
        f"--name={name}",
        f"--attach={_go(attach)}",
        f"--topology={_go(topology)}",
        f"--node-expansion={_go(node_expansion)}",
        *flags,
    ]
    return supervisor.start(f"mockdriver-{socket.stem}", command, ready=lambda: listens_on(socket))


def _go(value: bool) -> str:
    return "true" if value else "false"
