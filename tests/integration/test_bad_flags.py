"""Every flag of every command with a wrong value: exit code 2, and a message that names the flag and its variable."""

import sys
from dataclasses import dataclass, field
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from cli import main, process
from cli.command import Command
from cli.options import Option


@dataclass(frozen=True)
class Case:
    """A command, and what must be given for it to start."""

    words: tuple[str, ...]
    needed: dict[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()

    @property
    def options(self) -> list[Option]:
        found: click.Command = main.cli
        for word in self.words:
            assert isinstance(found, click.Group)
            found = found.commands[word]
        assert isinstance(found, Command)
        return found.options

    def __str__(self) -> str:
        return "-".join(self.words)


COMMANDS = (
    Case(("hub",)),
    Case(("driver",), {"--drivername": "d.example"}),
    Case(("edge", "run"), {"--node": "n1", "--hub": "unix:///run/hub.sock"}),
    Case(("call",), {"--driver": "d.example"}, ("CreateVolume",)),
    Case(("status",)),
    Case(("doctor",)),
    Case(("edge", "volumes")),
    Case(("nodes",)),
    Case(("volumes",)),
    Case(("forget",), {}, ("n1",)),
    Case(("trust",)),
    Case(("deny",), {}, ("n1",)),
    Case(("allow",), {}, ("n1",)),
    Case(("denials",)),
    Case(("fence",), {}, ("n1",)),
    Case(("unfence",), {}, ("n1",)),
    Case(("audit",)),
    Case(("facts",)),
    Case(("token", "create")),
    Case(("token", "list")),
    Case(("token", "revoke"), {}, ("t1",)),
    Case(("edge", "join"), {}, ("-",)),
)

WRONG = {
    "": ("maybe",),
    "DURATION": ("soon", "-1s", "10 s", "1d", "", "100000000h"),
    "SIZE": ("big", "-1", "1.5MiB", "4mib", "", "9" * 30),
    "N": ("many", "-1", "1.5", "0x10", "", "9" * 30),
    "HOST:PORT": (":80", "127.0.0.1", "127.0.0.1:70000", "host:", "[::1:80", "http://h:1", ""),
    "unix:///PATH": ("run/x.sock", "tcp://h:1", "unix://x.sock", "unix:///" + "x" * 107, ""),
    "ENDPOINT": ("http://h:1", "wss://h", "hub.sock", "unix:///" + "x" * 107, "wss://:1", ""),
    "PROXY": ("https://h:1", "http://h:70000", "http://h/x", ":1", ""),
    "TIME": ("", "soon", "-1h"),
    "MODE": ("0999", "rw-rw----", "66", "07777", ""),
    "PATH": ("", "a\0b"),
    "JSON": ("", "{", "[]", "7", "[" * 100_000),
    "TEXT": ("", "two\nlines", "a\x00b"),
    "NAME=FLAVOUR:VERSION": ("kata", "kata=qemu:3.20", "kata=go", "kata=go:2.4", "=go:3.20", ""),
    "KEY,...": ("-a", "a/b/c", "a=b", "zone,"),
    "wss://HOST:PORT": ("ws://h:1", "wss://h", "h:1", "wss://:1", ""),
    "KEY=VALUE,...": ("edge", "a=b=c", "-a=b", "a=b,a=c"),
    "KEY=VALUE:EFFECT,...": ("edge", "a=b", "a=b:Never", "a:NoSchedule,a=b:NoSchedule"),
    "NAME=unix:///PATH,...": (
        "",
        "d.example",
        "=unix:///x.sock",
        "d.example=tcp://h:1",
        "d.example=unix:///x.sock,placement=here",
        "d.example=unix:///x.sock,colour=red",
        "d.example=unix:///x.sock,nodeid=n1,nodeid=n2",
        "d.example=unix:///x.sock,nodeid=n1,placement=local",
        "d.example=unix:///x.sock,nodeid=n1,placement=shared",
    ),
    "DRIVER=NODE,...": (
        "",
        "d.example",
        "d.example=",
        "=n1",
        "d.example=n1,",
        "d.example=N 1",
        "a/b=n1",
        "d.example=label:",
        "d.example=label:example.com/site=a b",
    ),
    "PATTERN": ("", "two\nlines", "a\x00b"),
    "NAME": ("", "two\nlines", "a\x00b", "n" * 254),
}
"""By what stands for the value in `--help`. A closed set of words adds its own."""

OUT_OF_BOUNDS = {
    "max_message_bytes": ("1KiB", "65MiB"),
    "session_window_bytes": ("1MB", "2GiB"),
    "max_calls": ("0", "100001"),
    "max_connections": ("0", "1000001"),
    "max_handshakes": ("0", "1000001"),
    "max_nodes": ("0", "1000001"),
    "max_open_creates": ("0", "10000001"),
    "takeover_after_s": ("999ms", "25h"),
    "controller_lease_s": ("999ms", "25h"),
    "fact_quota_bytes": ("1KiB", "2GiB"),
    "keepalive_s": ("99ms", "11m"),
    "hello_timeout_s": ("0s", "601s"),
    "operation_limit_s": ("999ms", "25h"),
    "max_operations": ("0", "100001"),
    "verbosity": ("2147483648",),
    "uds_allow_uid": ("4294967295",),
    "leader_election_lease_duration_s": ("999ms", "25h"),
    "leader_election_renew_deadline_s": ("999ms", "25h"),
    "leader_election_retry_period_s": ("99ms", "25h"),
    "audit_grace_s": ("61m",),
    "cert_ttl_s": ("9s", "8761h"),
    "renew_grace_s": ("87601h",),
    "volume_stats_interval_s": ("999ms", "25h"),
    "volume_republish_interval_s": ("999ms", "25h"),
    "timeout_s": ("99ms", "11m"),
    "ttl_s": ("999ms", "8761h"),
    "uses": ("0", "1000001"),
}
"""What the parser reads and the bounds refuse."""


def run(command: Case, *argv: str, **env: str) -> Result:
    given = {flag: value for flag, value in command.needed.items() if not any(arg.startswith(flag) for arg in argv)}
    words = [*command.words, *(f"{flag}={value}" for flag, value in given.items()), *argv, *command.arguments]
    return CliRunner().invoke(main.cli, words, env=env, prog_name="csi-bridge")


def has_bounds(option: Option) -> bool:
    return isinstance(option.type, click.IntRange) or bool(getattr(option.type, "_low", ""))


def values(option: Option) -> tuple[str, ...]:
    metavar = option.metavar or ""
    if "|" in metavar:
        return ("purple", "", metavar)
    return WRONG[metavar] + (OUT_OF_BOUNDS.get(option.name or "", ()) if has_bounds(option) else ())


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The settings that `csi-bridge` would have started a process with."""
    found: list[Any] = []
    monkeypatch.setattr(process, "run", lambda settings, _main, **_: found.append(settings))
    return found


OPTIONS = [(command, option) for command in COMMANDS for option in command.options if not option.hidden]


def fits_variable(option: Option, value: str) -> bool:
    """Whether a variable can have the value: it holds no zero byte, and an empty one counts as unset.

    In the variable of a flag that may be repeated, a blank stands between two values.
    """
    return bool(value) and "\0" not in value and not (option.multiple and value.split() != [value])


def name_of(case: Case | Option) -> str:
    return case.opts[0] if isinstance(case, Option) else str(case)


def not_refused(results: dict[str, Result], option: Option) -> dict[str, str]:
    """The outputs of the values that are not refused with code 2 and a message that names variable and flag."""
    refusal = f"Error: {option.envvar} or {option.opts[0]}"
    return {
        value: result.output
        for value, result in results.items()
        if result.exit_code != 2 or refusal not in result.output
    }


def test_each_flag_with_bounds_is_tried_out_of_them() -> None:
    assert {option.name for _, option in OPTIONS if has_bounds(option)} == {*OUT_OF_BOUNDS}


# One test has all values of a flag: with a test for each value, pytest would do more work than the command.
@pytest.mark.usefixtures("started")
@pytest.mark.parametrize(("command", "option"), OPTIONS, ids=name_of)
def test_a_flag_and_a_variable_with_a_wrong_value_are_named(command: Case, option: Option) -> None:
    by_flag = {value: run(command, f"{option.opts[0]}={value}") for value in values(option)}
    assert not_refused(by_flag, option) == {}
    needed = {flag: value for flag, value in command.needed.items() if flag != option.opts[0]}
    bare = Case(command.words, needed, command.arguments)
    fitting = [value for value in values(option) if fits_variable(option, value)]
    by_variable = {value: run(bare, **{option.envvar: value}) for value in fitting}
    assert not_refused(by_variable, option) == {}


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_what_is_no_flag_ends_with_code_2(command: Case) -> None:
    for argv in (["--no-such-flag"], ["extra", "words", "here"]):
        assert run(command, *argv).exit_code == 2


@pytest.mark.parametrize(
    ("command", "argv", "said"),
    [
        (
            COMMANDS[0],
            ["--serve=d.example=unix:///a.sock", "--serve=d.example=unix:///b.sock"],
            "HUB_SERVE or --serve=d.example=unix:///b.sock,endpoint-mode=0660,placement=auto: is the second one",
        ),
        (
            COMMANDS[0],
            ["--serve=d.example=unix:///a.sock", "--serve=e.example=unix:///a.sock"],
            "--serve=e.example=unix:///a.sock,endpoint-mode=0660,placement=auto: needs a socket of its own",
        ),
        (COMMANDS[0], ["--edgecore-nodes"], "HUB_EDGECORE_NODES or --edgecore-nodes=true: needs --kubeconfig"),
        (
            COMMANDS[1],
            ["--kubeedge-endpoint=wss://h:1"],
            "HUB_ENDPOINT or --hub-endpoint=wss://h:1: wss:// needs --tls",
        ),
        (COMMANDS[1], ["--hub-endpoint=ws://10.0.0.1:1", "--insecure"], "plain ws:// is for loopback addresses"),
        (COMMANDS[1], ["--hub-endpoint=/a.sock", "--hub-endpoint=wss://h:1"], "--hub-endpoint=wss://h:1: wss:// needs"),
        (
            COMMANDS[2],
            ["--hub=/a.sock", "--hub=ws://10.0.0.1:1", "--insecure"],
            "--hub=ws://10.0.0.1:1: plain ws:// is",
        ),
        (
            COMMANDS[3],
            ["--hub=ws://127.0.0.1:1"],
            "CSI_BRIDGE_HUB or --hub=ws://127.0.0.1:1: must be the hub's UNIX socket",
        ),
        (COMMANDS[4], ["--hub=localhost:1"], "CSI_BRIDGE_HUB or --hub=localhost:1: must be the hub's UNIX sock"),
        (COMMANDS[5], ["--hub=wss://hub:1"], "CSI_BRIDGE_HUB or --hub=wss://hub:1: must be the hub's UNIX sock"),
    ],
)
def test_settings_that_do_not_fit_each_other_are_named(command: Case, argv: list[str], said: str) -> None:
    result = run(command, *argv)
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())


# -------------------- KubeEdge's csidriver --------------------


def csi_bridge(monkeypatch: pytest.MonkeyPatch, *argv: str) -> int:
    """Run the console script; returns its exit code."""
    monkeypatch.setattr(sys, "argv", ["csi-bridge", *argv])
    with pytest.raises(SystemExit) as exit_:
        main.main()
    return int(exit_.value.code or 0)


KUBEEDGE = {
    "drivername": "d.example",
    "endpoint": "unix:///csi/csi.sock",
    "kubeedge-endpoint": "unix:///var/lib/kubeedge/kubeedge.sock",
    "nodeid": "n1",
    "v": "5",
}


@pytest.mark.parametrize("dashes", ["-", "--"])
@pytest.mark.parametrize("between", ["=", " "])
def test_the_flags_of_kubeedges_csidriver_start_the_proxy_driver(
    monkeypatch: pytest.MonkeyPatch, started: list[Any], dashes: str, between: str
) -> None:
    argv = [word for name, value in KUBEEDGE.items() for word in f"{dashes}{name}{between}{value}".split(" ")]
    assert csi_bridge(monkeypatch, "driver", *argv) == 0
    (settings,) = started
    assert (settings.drivername, settings.nodeid, settings.verbosity) == ("d.example", "n1", 5)
    (hub,) = settings.hub_endpoint
    assert str(hub.path) == "/var/lib/kubeedge/kubeedge.sock"


# -------------------- help --------------------


@pytest.mark.parametrize("command", COMMANDS, ids=str)
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_lists_every_flag_with_its_default_and_its_variable(command: Case, flag: str) -> None:
    result = CliRunner().invoke(main.cli, [*command.words, flag])
    assert result.exit_code == 0
    text = squeezed(result.output)
    for option in (option for option in command.options if not option.hidden):
        for name in option.opts:
            assert name in text
        assert squeezed(option.help or "") in text
        default = "required" if option.required else f"default: {option.default_text or 'unset'}"
        unit = f"; unit: {option.unit}" if option.unit else ""
        repeatable = "; repeatable" if option.multiple else ""
        assert squeezed(f"[{default}{unit}{repeatable}; env: {option.envvar}]") in text


def squeezed(text: str) -> str:
    """Without blanks: lines are broken at hyphens, too."""
    return "".join(text.split())


def test_the_version_is_told() -> None:
    assert CliRunner().invoke(main.cli, ["--version"]).exit_code == 0


@pytest.mark.parametrize("argv", [["--help"], ["edge", "--help"]])
def test_every_command_is_described_in_whole_on_a_terminal_of_80_columns(argv: list[str]) -> None:
    assert "..." not in CliRunner().invoke(main.cli, argv, terminal_width=80).output.partition("Commands:")[2]


def test_a_shell_can_complete_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("_CSI_BRIDGE_COMPLETE", "zsh_source")
    assert csi_bridge(monkeypatch) == 0
    assert "#compdef csi-bridge" in capsys.readouterr().out
    assert "_CSI_BRIDGE_COMPLETE=bash_source" in CliRunner().invoke(main.cli, ["--help"]).output
