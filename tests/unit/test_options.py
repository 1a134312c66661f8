"""Options of commands: flags, variables, help, errors and exit codes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result

from cli.command import Command
from cli.options import FilePath, Options, Text, duration_type, option, size_type
from common.errors import SettingsError
from common.parsers import host_port, unix_path, words

if TYPE_CHECKING:
    from common.parsers import HostPort


@dataclass(frozen=True, kw_only=True)
class KilnSettings:
    name: str
    bake_limit_s: float
    chunk_bytes: int
    batches: int
    hub: str | None
    socket: tuple[Path, ...]
    http: HostPort | None
    wood: str
    log: Path | None
    cold: bool

    def __post_init__(self) -> None:
        if self.cold and self.batches > 8:
            raise SettingsError("--batches", self.batches, "a cold kiln takes eight batches")


KILN = Options(
    KilnSettings,
    "KILN",
    option("--name", type=Text(words, "TEXT"), required=True, help="The kiln's name."),
    option("--bake-limit", type=duration_type("1s", "1h"), default="10m", group="tuning", help="How long it may bake."),
    option("--chunk", type=size_type("1KiB", "64KiB"), default="16KiB", help="How much goes in at once."),
    option("--batches", "-b", type=click.IntRange(1, 9), default="4", unit="batches", help="How many at once."),
    option("--hub", "--kubeedge-hub", type=Text(words, "TEXT"), help="Where the hub is."),
    option("--socket", type=Text(unix_path, "unix:///PATH"), multiple=True, help="Where to listen."),
    option("--http", type=Text(host_port, "HOST:PORT"), help="Where to serve metrics."),
    option("--wood", type=click.Choice(["oak", "ash"]), default="oak", help="What burns."),
    option("--log", type=FilePath(path_type=Path), help="Where to write."),
    option("--cold", type=click.BOOL, group="tls", help="Do not heat."),
    option("--old", type=click.BOOL, hidden=True, help="The same."),
)  # fmt: skip


@click.command(cls=Command, settings=KILN)
@click.argument("word", default="")
def kiln(settings: KilnSettings, word: str, *, old: bool) -> None:
    click.echo(f"{settings} {word} old={old}")


def run(*argv: str, **env: str) -> Result:
    return CliRunner().invoke(kiln, argv, env=env, prog_name="csi-bridge kiln")


DEFAULTS = KilnSettings(
    name="k1", bake_limit_s=600.0, chunk_bytes=16384, batches=4, hub=None, socket=(), http=None, wood="oak", log=None,
    cold=False,
)  # fmt: skip


def test_the_command_gets_its_settings_in_one_argument_and_other_values_by_name() -> None:
    result = run("--name=k1", "--old", "!")
    assert result.exit_code == 0
    assert result.output == f"{DEFAULTS} ! old=True\n"


def test_a_value_is_called_like_its_flag_with_the_unit_of_its_type() -> None:
    output = run(
        "--name=k1", "--bake-limit", "90s", "--chunk=4KiB", "--socket=/a", "--socket=unix:///b", "--log=l"
    ).output
    for part in (
        "bake_limit_s=90.0",
        "chunk_bytes=4096",
        "socket=(PosixPath('/a'), PosixPath('/b'))",
        "log=PosixPath('l')",
    ):
        assert part in output  # fmt: skip


def test_each_flag_has_a_variable() -> None:
    result = run(CSI_BRIDGE_KILN_NAME="k2", CSI_BRIDGE_KILN_SOCKET="/a /b", CSI_BRIDGE_KILN_COLD="true")
    assert "name='k2'" in result.output
    assert "socket=(PosixPath('/a'), PosixPath('/b'))" in result.output
    assert "cold=True" in result.output


def test_the_flag_wins_over_the_variable() -> None:
    assert "name='flag'" in run("--name=flag", CSI_BRIDGE_KILN_NAME="variable").output


def test_an_alias_is_the_same_flag() -> None:
    assert "hub='h1'" in run("--name=k1", "--kubeedge-hub=h1").output


def test_an_empty_variable_counts_as_not_set() -> None:
    assert "bake_limit_s=600" in run("--name=k1", CSI_BRIDGE_KILN_BAKE_LIMIT="").output


def test_a_switch_can_be_off_in_its_variable() -> None:
    assert "cold=False" in run("--name=k1", CSI_BRIDGE_KILN_COLD="false").output


# -------------------- errors --------------------


@pytest.mark.parametrize(
    ("argv", "env", "named"),
    [
        (("--bake-limit=soon",), {}, "BAKE_LIMIT or --bake-limit=soon: must be a duration like 10s, 500ms or 1h30m "),
        ((), {"CSI_BRIDGE_KILN_BAKE_LIMIT": "x"}, "BAKE_LIMIT or --bake-limit=x: must be a duration"),
        (("--bake-limit=999ms",), {}, "BAKE_LIMIT or --bake-limit=999ms: must be at least 1s and at most 1h"),
        (("--bake-limit=",), {}, "BAKE_LIMIT or --bake-limit: must be a duration"),
        (("--bake-limit=a\nb",), {}, r'BAKE_LIMIT or --bake-limit="a\nb": must be a duration'),
        (("--chunk=65KiB",), {}, "CHUNK or --chunk=65KiB: must be at least 1KiB and at most 64KiB"),
        ((), {"CSI_BRIDGE_KILN_COLD": "maybe"}, "COLD or --cold=maybe: must be true or false"),
        ((), {"CSI_BRIDGE_KILN_SOCKET": "/a b"}, "SOCKET or --socket=b: must be the absolute path"),
        (("--socket=/a", "--socket=b"), {}, "SOCKET or --socket=b: must be the absolute path"),
        (("--http=:80",), {}, "HTTP or --http=:80: must name a host"),
        (("--batches=-1",), {}, "BATCHES or --batches=-1: must be a whole number from 1 to 9"),
        (("--batches=10",), {}, "BATCHES or --batches=10: must be a whole number from 1 to 9"),
        (("--wood=elm",), {}, "WOOD or --wood=elm: must be one of oak, ash"),
        (("--log=",), {}, "LOG or --log: must be a path"),
        (("--log=a\0",), {}, r'LOG or --log="a\u0000": must be a path'),
        (("--cold", "--batches=9"), {}, "BATCHES or --batches=9: a cold kiln takes eight batches"),
    ],
)  # fmt: skip
def test_a_wrong_value_ends_with_code_2_and_names_flag_and_variable(
    argv: tuple[str, ...], env: dict[str, str], named: str
) -> None:
    result = run("--name=k1", *argv, **env)
    assert result.exit_code == 2
    assert f"Error: CSI_BRIDGE_KILN_{named}" in result.output


def test_a_long_wrong_value_is_cut() -> None:
    assert len(run("--name=k1", f"--bake-limit={'x' * 10_000}").output) < 400


def test_a_missing_required_setting_ends_with_code_2() -> None:
    result = run()
    assert result.exit_code == 2
    assert "CSI_BRIDGE_KILN_NAME or --name: required: the kiln's name" in result.output


def test_an_unknown_flag_ends_with_code_2() -> None:
    assert run("--name=k1", "--no-such=1").exit_code == 2


# -------------------- Go's spelling --------------------


@pytest.mark.parametrize(
    ("argv", "settings"),
    [
        (["-name=x"], "name='x'"),
        (["-name", "x"], "name='x'"),
        (["-name=x=y"], "name='x=y'"),
        (["-name", "-b"], "name='-b'"),
        (["-kubeedge-hub=h1"], "hub='h1'"),
        (["-socket", "/a", "-socket=/b"], "socket=(PosixPath('/a'), PosixPath('/b'))"),
        (["-b=5"], "batches=5"),
        (["-b", "5"], "batches=5"),
        (["-b5"], "batches=5"),
        (["-cold"], "cold=True"),
        (["-cold=T", "-b", "5"], "cold=True"),
        (["--cold=true", "-cold=false"], "cold=False"),
        (["--cold=0"], "cold=False"),
    ],
)
def test_a_flag_works_in_gos_spelling(argv: list[str], settings: str) -> None:
    assert settings in run("--name=k1", *argv).output


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["-stderrthreshold=2"], "No such option"),
        (["---b=5"], "No such option"),
        (["-name"], "'-name' requires an argument"),
        (["-b=many"], "CSI_BRIDGE_KILN_BATCHES or --batches"),
        (["-cold=maybe"], "CSI_BRIDGE_KILN_COLD or --cold=maybe: must be true or false"),
    ],
)
def test_a_wrong_flag_in_gos_spelling_is_named(argv: list[str], said: str) -> None:
    result = run("--name=k1", *argv)
    assert result.exit_code == 2
    assert said in result.output


def test_flags_end_at_two_dashes() -> None:
    assert "batches=4" in run("--name=k1", "--", "-b=5").output


# -------------------- texts --------------------


def test_settings_are_read_from_texts_without_the_variables_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CSI_BRIDGE_KILN_BATCHES", "7")
    assert KILN.read({"name": "k1"}) == DEFAULTS
    assert KILN.read({"name": ["k1"], "socket": ["/a", "unix:///b"]}).socket == (Path("/a"), Path("/b"))
    assert (KILN.default("chunk_bytes"), KILN.default("http")) == (16384, None)


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ({"name": "k1", "bake_limit_s": "soon"}, "CSI_BRIDGE_KILN_BAKE_LIMIT or --bake-limit=soon: must be a duration"),
        ({}, "CSI_BRIDGE_KILN_NAME or --name: required: the kiln's name"),
        ({"name": "k1", "cold": "true", "batches": "9"}, "CSI_BRIDGE_KILN_BATCHES or --batches=9: a cold kiln takes"),
    ],
)
def test_wrong_texts_are_named_like_wrong_flags(texts: dict[str, str], said: str) -> None:
    with pytest.raises(SettingsError) as refused:
        KILN.read(texts)
    assert str(refused.value).startswith(said)


# -------------------- help and completion --------------------


def test_help_lists_required_flags_first_and_tuning_last() -> None:
    text = run("--help", COLUMNS="200").output
    assert "  WORD" not in text
    order = [line for line in text.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert order == ["Required:", "Options:", "TLS:", "Tuning (the defaults fit most sites):"]
    assert text.index("--name") < text.index("--batches") < text.index("--cold") < text.index("--bake-limit")


def test_a_hidden_flag_is_not_shown() -> None:
    assert "--old" not in run("--help").output


def test_help_shows_every_flag_with_default_unit_and_variable() -> None:
    text = " ".join(run("--help", COLUMNS="200").output.split())
    for part in (
        "--name TEXT The kiln's name. [required; env: CSI_BRIDGE_KILN_NAME]",
        "--bake-limit DURATION How long it may bake. [default: 10m; env: CSI_BRIDGE_KILN_BAKE_LIMIT]",
        "-b, --batches N How many at once. [default: 4; unit: batches; env: CSI_BRIDGE_KILN_BATCHES]",
        "--hub, --kubeedge-hub TEXT Where the hub is. [default: unset; env: CSI_BRIDGE_KILN_HUB]",
        "--socket unix:///PATH Where to listen. [default: unset; repeatable; env: CSI_BRIDGE_KILN_SOCKET]",
        "--http HOST:PORT Where to serve metrics. [default: unset; env: CSI_BRIDGE_KILN_HTTP]",
        "--wood oak|ash What burns. [default: oak; env: CSI_BRIDGE_KILN_WOOD]",
        "--log PATH Where to write. [default: unset; env: CSI_BRIDGE_KILN_LOG]",
        "--cold Do not heat. [default: false; env: CSI_BRIDGE_KILN_COLD]",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("before", "part", "found"),
    [
        ([], "--ba", ["--bake-limit", "--batches"]),
        ([], "--wood=", ["oak", "ash"]),
        (["--wood"], "a", ["ash"]),
        (["--cold"], "--na", ["--name"]),
    ],
)
def test_a_shell_completes_flags_and_their_words(before: list[str], part: str, found: list[str]) -> None:
    items = ShellComplete(kiln, {}, "kiln", "_KILN_COMPLETE").get_completions(before, part)
    assert [item.value for item in items] == found
