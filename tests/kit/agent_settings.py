"""The settings of an agent, for tests of its parts."""

from pathlib import Path
from typing import Any

from cli.process_options import EDGE_OPTIONS


def agent_settings(state_dir: Path, *drivers: Path, node: str = "n1", own: bool = True) -> Any:
    """Return the settings of an agent with drivers at these sockets. `own`: the node has no kubelet."""
    return EDGE_OPTIONS.read(
        {
            "node": node,
            "hub": "ws://127.0.0.1:1",
            "insecure": "true",
            "state_dir": str(state_dir),
            "registration": "own" if own else "observe",
            "driver": [f"unix://{driver}" for driver in drivers],
        }
    )
