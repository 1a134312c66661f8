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
        "| `--drivername=NAME` | required | `CSI_BRIDGE_DRIVER_DRIVERNAME` | Name of the vendor's driver, ",
        "| `--max-nodes=N` | `20000` nodes | `CSI_BRIDGE_HUB_MAX_NODES` | Edge nodes that the hub knows, ",
        "| `--keepalive=DURATION` | `10s` | `CSI_BRIDGE_…_KEEPALIVE` | ",
        "| `--max-message=SIZE` | `4MiB` | `CSI_BRIDGE_…_MAX_MESSAGE` | ",
        "| `--driver=unix:///PATH` | unset | `CSI_BRIDGE_EDGE_DRIVER` | ",
        "the node plugin registers by itself. Repeatable. |",
        "| `--output=table\\|json`, `-o` | `table` | `CSI_BRIDGE_NODES_OUTPUT` | ",
        "| `csi_bridge_link_downs_total` | counter | `reason` | Sessions ended, by reason. |",
        "| `csi_plugin_operations_seconds` | histogram | `driver_name`, `grpc_status_code`, `method_name` | ",
        *(f"| `{error.__name__}` | {code.name} | " for error, code in CODES.items()),
    ):
        assert line in page


def test_a_flag_that_several_commands_share_stands_in_it_once_and_a_hidden_one_never() -> None:
    page = render()
    assert page.count("`--tls-ca=PATH`") == 1
    assert page.count("`--max-message=SIZE`") == 2  # of processes, and of commands for operators
    assert "`--json`" not in page
    assert "[flags of every process](#flags-of-every-process)" in page
