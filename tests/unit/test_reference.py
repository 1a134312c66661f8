"""docs/reference.md is what the code says."""

from __future__ import annotations

from pathlib import Path

from cli.main import cli
from cli.reference import render
from common.errors import CODES

PAGE = Path(__file__).parents[2] / "docs" / "reference.md"


def test_the_page_is_of_this_version() -> None:
    assert PAGE.read_text() == render(), "run make reference"


def test_every_command_flag_metric_and_error_stands_in_it() -> None:
    page = render()
    for name in cli.commands:
        assert f"### `csi-bridge {name}" in page
    for line in (
        "| `--drivername=NAME` | required | `CSI_BRIDGE_DRIVER_DRIVERNAME` | The vendor driver's name, ",
        "| `--max-nodes=N` | `20000` nodes | `CSI_BRIDGE_HUB_MAX_NODES` | Edge nodes that the hub knows, ",
        "| `--driver=unix:///PATH` | unset | `CSI_BRIDGE_EDGE_DRIVER` | ",
        "the controller's; the node plugin registers. Repeatable. |",
        "| `--output=table\\|json`, `-o` | `table` | `CSI_BRIDGE_NODES_OUTPUT` | ",
        "| `csi_bridge_link_downs_total` | counter | `reason` | Sessions ended, by reason. |",
        "| `csi_plugin_operations_seconds` | histogram | `driver_name`, `grpc_status_code`, `method_name` | ",
        *(f"| `{error.__name__}` | {code.name} | " for error, code in CODES.items()),
    ):
        assert line in page
