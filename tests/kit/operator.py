"""An operator: reads a hub's state over its UNIX socket, as `csi-bridge status` does, or runs a command."""

import subprocess
from pathlib import Path
from typing import Any

from cli.operators.hub_state import as_json, ask_state
from common.net.endpoint import Endpoint
from tests.kit import prefork


def hub_state(uds: Path) -> dict[str, Any]:
    """Return the hub's state: its nodes and the connected proxy drivers."""
    return as_json(ask_state(Endpoint(f"unix://{uds}", path=uds), timeout_s=60))


def node_state(uds: Path, node: str) -> dict[str, Any]:
    (found,) = (state for state in hub_state(uds)["nodes"] if state["node"] == node)
    return dict(found)


def by_hand(*argv: str) -> subprocess.CompletedProcess[str]:
    """Run a command of `csi-bridge`."""
    return prefork.run(*argv)
