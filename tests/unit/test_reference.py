"""docs/reference.md is what the code says."""

from pathlib import Path

from cli.command import Command
from cli.main import cli
from docs.reference import commands, render

PAGE = Path(__file__).parents[2] / "docs" / "reference.md"


def test_the_page_is_of_this_version() -> None:
    assert PAGE.read_text() == render(PAGE.read_text()), "run make reference"


def test_every_command_flag_and_metric_stands_in_it() -> None:
    page = render(PAGE.read_text())
    for name in cli.commands:
        assert f"### `csi-bridge {name}" in page
    for line in (
        "| `--drivername=NAME` | required | Name of the vendor's driver, ",
        "| `--max-nodes=N` | `20000` nodes | Edge nodes that the hub knows, ",
        "| `--keepalive=DURATION` | `10s` | ",
        "| `--max-message=SIZE` | `4MiB` | ",
        "| `--driver=unix:///PATH` | unset | ",
        "the node plugin registers by itself. Repeatable. |",
        "| `csi_bridge_link_downs_total` | counter | `reason` | Sessions ended, by reason. |",
        "| `csi_plugin_operations_seconds` | histogram | `driver_name`, `grpc_status_code`, `method_name` | ",
    ):
        assert line in page


def test_a_flag_that_several_commands_share_stands_in_it_once_and_a_hidden_one_never() -> None:
    page = render(PAGE.read_text())
    assert page.count("`--tls-ca=PATH`") == 1
    assert page.count("`--max-message=SIZE`") == 2  # of processes, and of commands for operators
    assert "`--json`" not in page
    assert "| `--output=" not in page
    assert "They belong to `driver`, `edge run` and `hub`." in page


def test_a_flags_variable_has_the_name_that_the_page_says() -> None:
    names = {"edge run": "EDGE", "edge join": "EDGE"}
    for path, command in commands("", cli):
        for option in command.options if isinstance(command, Command) else ():
            flag = option.opts[0].lstrip("-")
            name = "hub" if flag == "hub" and path != "edge run" else f"{names.get(path, path)} {flag}"
            assert option.envvar == f"CSI_BRIDGE_{name.upper().replace(' ', '_').replace('-', '_')}"
