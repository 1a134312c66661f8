"""Settings on the command line: flags, variables, help and exit codes."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import click
import pytest
from click.testing import CliRunner, Result

from cli.options import CONTEXT_SETTINGS, SettingsCommand, settings_options
from common.parsers import HostPort, count, duration, host_port, switch, unix_path, words
from common.settings import REQUIRED, Settings, describe, setting


@dataclass(frozen=True, kw_only=True)
class KilnSettings(Settings):
    command: ClassVar[str] = "kiln"

    name: str = setting(REQUIRED, parse=words, help="The kiln's name.")
    bake_limit_s: float = setting("10m", parse=duration, group="tuning", help="How long a batch may bake.")
    batches: int = setting("4", parse=count, unit="batches", help="How many at once.")
    hub: str | None = setting(None, parse=words, aliases=("--kubeedge-hub",), help="Where the hub is.")
    sockets: tuple[Path, ...] = setting((), parse=unix_path, repeatable=True, flag="socket", help="Where to listen.")
    http: HostPort | None = setting(None, parse=host_port, help="Where to serve metrics.")
    cold: bool = setting("false", parse=switch, group="tls", help="Do not heat.")
    old: bool = setting("false", parse=switch, hidden=True, help="The same.")


@click.command(cls=SettingsCommand, context_settings=CONTEXT_SETTINGS)
@click.argument("word", default="")
@settings_options(KilnSettings)
def kiln(settings: KilnSettings, word: str) -> None:
    click.echo(describe(settings) + word)


def run(*argv: str, **env: str) -> Result:
    return CliRunner().invoke(kiln, argv, env=env, prog_name="csi-bridge kiln")


def test_the_command_gets_its_settings_in_one_argument() -> None:
    result = run("--name=k1", "--bake-limit", "90s", "--socket=/a", "--socket=unix:///b", "--cold", "!")
    assert result.exit_code == 0
    assert result.output == (
        "name=k1 bake_limit_s=90 batches=4 hub=unset sockets=/a,/b http=unset cold=true old=false!\n"
    )  # fmt: skip


def test_each_flag_has_a_variable() -> None:
    result = run(CSI_BRIDGE_KILN_NAME="k2", CSI_BRIDGE_KILN_SOCKET="/a /b", CSI_BRIDGE_KILN_COLD="true")
    assert "name=k2" in result.output
    assert "sockets=/a,/b" in result.output
    assert "cold=true" in result.output


def test_the_flag_wins_over_the_variable() -> None:
    assert "name=flag" in run("--name=flag", CSI_BRIDGE_KILN_NAME="variable").output


def test_an_alias_is_the_same_flag() -> None:
    assert "hub=h1" in run("--name=k1", "--kubeedge-hub=h1").output


def test_an_empty_variable_counts_as_not_set() -> None:
    assert "bake_limit_s=600" in run("--name=k1", CSI_BRIDGE_KILN_BAKE_LIMIT="").output


def test_a_switch_can_be_off_in_its_variable() -> None:
    assert "cold=false" in run("--name=k1", CSI_BRIDGE_KILN_COLD="false").output


@pytest.mark.parametrize(
    ("argv", "env", "named"),
    [
        (("--bake-limit=soon",), {}, "CSI_BRIDGE_KILN_BAKE_LIMIT or --bake-limit=soon: must be a duration"),
        ((), {"CSI_BRIDGE_KILN_BAKE_LIMIT": "x"}, "CSI_BRIDGE_KILN_BAKE_LIMIT or --bake-limit=x: must be a duration"),
        ((), {"CSI_BRIDGE_KILN_COLD": "maybe"}, "CSI_BRIDGE_KILN_COLD or --cold=maybe: must be true or false"),
        ((), {"CSI_BRIDGE_KILN_SOCKET": "/a b"}, "CSI_BRIDGE_KILN_SOCKET or --socket=b: must be the absolute path"),
        (("--http=:80",), {}, "CSI_BRIDGE_KILN_HTTP or --http=:80: must name a host"),
        (("--bake-limit=",), {}, "CSI_BRIDGE_KILN_BAKE_LIMIT or --bake-limit: must be a duration"),
        (("--batches=-1",), {}, "CSI_BRIDGE_KILN_BATCHES or --batches=-1: must be a whole number"),
    ],
)
def test_a_wrong_value_ends_with_code_2_and_names_flag_and_variable(
    argv: tuple[str, ...], env: dict[str, str], named: str
) -> None:
    result = run("--name=k1", *argv, **env)
    assert result.exit_code == 2
    assert named in result.output


def test_a_missing_required_setting_ends_with_code_2() -> None:
    result = run()
    assert result.exit_code == 2
    assert "CSI_BRIDGE_KILN_NAME or --name: required: the kiln's name" in result.output


def test_an_unknown_flag_ends_with_code_2() -> None:
    assert run("--name=k1", "--no-such=1").exit_code == 2


def test_help_lists_required_flags_first_and_tuning_last() -> None:
    text = run("--help", COLUMNS="200").output
    assert "  WORD" not in text
    order = [line for line in text.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert order == ["Required:", "Options:", "TLS:", "Tuning (the defaults fit most sites):"]
    assert text.index("--name") < text.index("--batches") < text.index("--cold") < text.index("--bake-limit")


def test_a_hidden_flag_works_and_is_not_shown() -> None:
    assert "old=true" in run("--name=k1", "--old").output
    assert "--old" not in run("--help").output


def test_help_shows_every_flag_with_default_unit_and_variable() -> None:
    text = " ".join(run("--help", COLUMNS="200").output.split())
    for part in (
        "--name TEXT The kiln's name. [required; env: CSI_BRIDGE_KILN_NAME]",
        "--bake-limit DURATION How long a batch may bake. [default: 10m; env: CSI_BRIDGE_KILN_BAKE_LIMIT]",
        "--batches N How many at once. [default: 4; unit: batches; env: CSI_BRIDGE_KILN_BATCHES]",
        "--hub, --kubeedge-hub TEXT Where the hub is. [default: unset; env: CSI_BRIDGE_KILN_HUB]",
        "--socket unix:///PATH Where to listen. [default: unset; repeatable; env: CSI_BRIDGE_KILN_SOCKET]",
        "--http HOST:PORT Where to serve metrics. [default: unset; env: CSI_BRIDGE_KILN_HTTP]",
        "--cold Do not heat. [default: false; env: CSI_BRIDGE_KILN_COLD]",
    ):
        assert part in text
