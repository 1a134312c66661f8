"""The settings of the processes: the flags of an invented command, and those of hub, agent and proxy driver."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result

from cli.command import Command
from cli.options import FilePath, Options, Text, duration_type, option, size_type
from cli.process_options import DRIVER_OPTIONS, EDGE_OPTIONS, HUB_OPTIONS
from common.errors import SettingsError
from common.net.settings import as_texts, describe
from common.parsers import HostPort, host_port, unix_path, words
from common.session.limits import Limits
from edge.settings import complete
from tests.kit.certificates import Authority


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
    option("--bake-limit=10m", type=duration_type("1s", "1h"), group="tuning", help="How long it may bake."),
    option("--chunk=16KiB", type=size_type("1KiB", "64KiB"), help="How much goes in at once."),
    option("--batches=4", "-b", type=click.IntRange(1, 9), unit="batches", help="How many at once."),
    option("--hub", "--kubeedge-hub", type=Text(words, "TEXT"), help="Where the hub is."),
    option("--socket", type=Text(unix_path, "unix:///PATH"), multiple=True, help="Where to listen."),
    option("--http", type=Text(host_port, "HOST:PORT"), help="Where to serve metrics."),
    option("--wood=oak", type=click.Choice(["oak", "ash"]), help="What burns."),
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


@pytest.mark.parametrize(
    ("argv", "env", "settings"),
    [
        (["--bake-limit", "90s"], {}, "bake_limit_s=90.0"),
        (["--bake-limit=90s"], {"CSI_BRIDGE_KILN_BAKE_LIMIT": "80s"}, "bake_limit_s=90.0"),
        ([], {"CSI_BRIDGE_KILN_BAKE_LIMIT": "80s"}, "bake_limit_s=80.0"),
        ([], {"CSI_BRIDGE_KILN_BAKE_LIMIT": ""}, "bake_limit_s=600.0"),
        (["--chunk=4KiB"], {}, "chunk_bytes=4096"),
        (["--socket=/a", "--socket=unix:///b"], {}, "socket=(PosixPath('/a'), PosixPath('/b'))"),
        ([], {"CSI_BRIDGE_KILN_SOCKET": "/a /b"}, "socket=(PosixPath('/a'), PosixPath('/b'))"),
        (["--log=l"], {}, "log=PosixPath('l')"),
        ([], {"CSI_BRIDGE_KILN_COLD": "true"}, "cold=True"),
        ([], {"CSI_BRIDGE_KILN_COLD": "false"}, "cold=False"),
        (["--kubeedge-hub=h1"], {}, "hub='h1'"),
    ],
)
def test_a_value_comes_from_its_flag_or_alias_then_its_variable_then_its_default(
    argv: list[str], env: dict[str, str], settings: str
) -> None:
    assert settings in run("--name=k1", *argv, **env).output


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
        (("--http=http://ann:p/s@h",), {}, "HTTP or --http=http://…@h: must "),
        (("--http=ann:p/s@h",), {}, "HTTP or --http=…@h: must "),
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
    assert "--old" not in text, "it is hidden"
    order = [line for line in text.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert order == ["Required:", "Options:", "TLS:", "Tuning (the defaults fit most sites):"]
    assert text.index("--name") < text.index("--batches") < text.index("--cold") < text.index("--bake-limit")


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


TLS = {"tls_ca": "/ca.pem", "tls_cert": "/cert.pem", "tls_key": "/key.pem"}
EDGE = {"node": "n1", "hub": "wss://hub:1", **TLS}
DRIVER = {"drivername": "d.example"}


def why(options: Options[Any], **given: str | list[str]) -> str:
    """The error of settings that are refused."""
    with pytest.raises(SettingsError) as error:
        options.read(given)
    return str(error.value)


# -------------------- limits --------------------


def test_every_limit_reaches_the_session() -> None:
    given = {
        "max_message_bytes": "64KiB",
        "session_window_bytes": "1MiB",
        "max_calls": "2",
        "keepalive_s": "300ms",
        "hello_timeout_s": "400ms",
    }
    assert HUB_OPTIONS.read(given).limits() == Limits(
        max_message_bytes=65_536,
        session_window_bytes=1_048_576,
        max_streams=2,
        keepalive_s=0.3,
        hello_timeout_s=0.4,
    )


def test_the_smallest_and_the_largest_of_everything_fit_together() -> None:
    HUB_OPTIONS.read({"max_message_bytes": "64MiB", "session_window_bytes": "1GiB"})
    HUB_OPTIONS.read({"max_message_bytes": "64KiB", "session_window_bytes": "1MiB"})


# -------------------- settings that need others --------------------


LABEL = "d.example=label:node-restriction.kubernetes.io/storage"
WINDOW = "SESSION_WINDOW or --session-window=.*must be at least one and a half times --max-message"
NO_TLS = "--listen=.*needs --tls-ca, --tls-cert and --tls-key"
ONE_HOST = "CSI_BRIDGE_HUB_INSECURE or --insecure=true: is for loopback addresses"
PLAIN = "plain ws:// is for loopback addresses with --insecure"
TOGETHER = ".*CA, certificate and key are needed together"


@pytest.mark.parametrize(
    ("options", "given", "said", "cure"),
    [
        *((HUB_OPTIONS, {"session_window_bytes": window, "max_message_bytes": message}, WINDOW, {cured: size})
          for window, message, cured, size in [
              ("1MiB", "4MiB", "session_window_bytes", "6MiB"), ("5MiB", "4MiB", "session_window_bytes", "6MiB"),
              ("64MiB", "64MiB", "max_message_bytes", "42MiB")]),
        *((HUB_OPTIONS, {flag: [LABEL]}, f"--{flag}={LABEL}: .*no cluster: needs --kubeconfig", {"kubeconfig": "/k"})
          for flag in ("candidates", "prefer")),
        *((HUB_OPTIONS, {f"tls_{name}": TLS[f"tls_{name}"] for name in given.split()}, missing + TOGETHER, TLS)
          for given, missing in [
              ("ca", "TLS_CERT or --tls-cert"), ("cert", "TLS_CA or --tls-ca"), ("ca cert", "TLS_KEY or --tls-key"),
              ("ca key", "TLS_CERT or --tls-cert"), ("cert key", "TLS_CA or --tls-ca")]),
        *((HUB_OPTIONS, {"listen": listen}, NO_TLS, {"insecure": "true"})
          for listen in ("127.0.0.1:1", "[::1]:1", "localhost:1")),
        *((HUB_OPTIONS, {"listen": listen, "insecure": "true"}, ONE_HOST, {"insecure": "false", **TLS})
          for listen in ("0.0.0.0:1", "[::]:1", "10.0.0.7:1", "hub.example:1")),
        *((EDGE_OPTIONS, {"node": "n1", "hub": hub, "insecure": insecure}, f"EDGE_HUB or --hub={hub}: {PLAIN}", EDGE)
          for hub in ("ws://10.0.0.7:1", "ws://hub.example:1", "ws://0.0.0.0:1") for insecure in ("true", "false")),
        (EDGE_OPTIONS, {"node": "n1", "hub": "ws://127.0.0.1:1"}, PLAIN, {"insecure": "true"}),
        *((DRIVER_OPTIONS, {**DRIVER, "hub_endpoint": "wss://hub:1", "insecure": insecure},
           "HUB_ENDPOINT or --hub-endpoint=wss://hub:1: wss:// needs --tls-ca", TLS) for insecure in ("true", "false")),
        (HUB_OPTIONS, {"uds_group": "0"}, "UDS_GROUP or --uds-group=0: needs at least one --uds-allow-uid",
         {"uds_allow_uid": ["1000"]}),
        (HUB_OPTIONS, {"uds_allow_uid": ["1000"]}, "UDS_ALLOW_UID or --uds-allow-uid=1000: needs --uds-group",
         {"uds_group": "0"}),
    ],
)  # fmt: skip
def test_settings_that_need_others_are_refused_without_them_and_pass_with_them(
    options: Options[Any], given: dict[str, Any], said: str, cure: dict[str, Any]
) -> None:
    refusal = why(options, **given)
    assert re.search(said, refusal), refusal
    options.read({**given, **cure})


# -------------------- elections --------------------


@pytest.mark.parametrize("key", ["zone", "example.com/site", "topology.kubernetes.io/zone", "csi-bridge.io/node"])
def test_a_label_that_a_node_may_set_itself_makes_no_candidate(key: str) -> None:
    said = why(HUB_OPTIONS, kubeconfig="/kubeconfig", candidates=[f"d.example=n1,label:{key}=a"])
    assert f"a node may set the label {key} on its own Node, and become a candidate by it" in said
    HUB_OPTIONS.read({"kubeconfig": "/kubeconfig", "prefer": [f"d.example=label:{key}=a"]})


@pytest.mark.parametrize(
    "key", ["node-restriction.kubernetes.io/storage", "csi-bridge.io/edge", "node-role.kubernetes.io/storage"]
)
def test_a_label_that_only_administrators_set_makes_candidates(key: str) -> None:
    settings = HUB_OPTIONS.read({"kubeconfig": "/kubeconfig", "candidates": [f"d.example=label:{key}"]})
    assert settings.election_rules("d.example").candidates == (f"label:{key}",)


# -------------------- TLS --------------------


@pytest.mark.parametrize("broken", [None, "-----BEGIN CERTIFICATE-----\nnone\n"], ids=["missing", "no-pem"])
@pytest.mark.parametrize("kind", ["ca", "cert", "key"])
def test_a_tls_file_that_cannot_be_used_is_named_by_its_own_flag(
    short_dir: Path, kind: str, broken: str | None
) -> None:
    pem = Authority(short_dir).hub()
    texts = {f"tls_{name}": str(getattr(pem, name)) for name in ("ca", "cert", "key")}
    path = Path(texts[f"tls_{kind}"])
    path.unlink()
    if broken is not None:
        path.write_text(broken)
    blamed = "cert" if kind == "key" and broken is not None else kind  # TLS names both then
    with pytest.raises(SettingsError, match=f"^--tls-{blamed}={texts[f'tls_{blamed}']}: .*{path}"):
        HUB_OPTIONS.read(texts).tls(server=True)


# -------------------- the hub's UNIX socket --------------------


@pytest.mark.parametrize(("group", "gid"), [("0", 0), ("4294967294", 4294967294), ("root", 0)])
def test_a_group_is_a_number_or_a_name(group: str, gid: int) -> None:
    assert HUB_OPTIONS.read({"uds_group": group, "uds_allow_uid": ["0"]}).uds_gid() == gid


@pytest.mark.parametrize("group", ["no-such-group-here", "4294967295", "99999999999999999999", "²"])
def test_a_group_that_is_none_is_refused_by_its_flag(group: str) -> None:
    settings = HUB_OPTIONS.read({"uds_group": group, "uds_allow_uid": ["0"]})
    with pytest.raises(SettingsError, match=r"^--uds-group="):
        settings.uds_gid()


def test_a_hub_for_this_host_alone_needs_no_setting_and_its_socket_is_its_users_alone() -> None:
    hub = HUB_OPTIONS.read({})
    assert (hub.listen, hub.tls(server=True), hub.uds_gid()) == (None, None, None)


def why_incomplete(**texts: str) -> str:
    with pytest.raises(SettingsError) as caught:
        complete(EDGE_OPTIONS.read(texts))
    return str(EDGE_OPTIONS.named(caught.value))


def test_an_agent_that_has_not_joined_needs_its_name_its_hub_and_its_tls_files(tmp_path: Path) -> None:
    told = {"state_dir": str(tmp_path)}
    assert "CSI_BRIDGE_EDGE_NODE or --node: required, unless" in why_incomplete(hub="wss://hub:1", **TLS, **told)
    assert "CSI_BRIDGE_EDGE_HUB or --hub: required, unless" in why_incomplete(node="n1", **told)
    assert "wss:// needs --tls-ca" in why_incomplete(node="n1", hub="wss://hub:1", **told)
    assert complete(EDGE_OPTIONS.read(EDGE)).driver == ()


# -------------------- as texts --------------------


def test_settings_are_made_again_of_their_texts() -> None:
    hub = HUB_OPTIONS.read(
        {
            "http": "[::1]:80",
            "keepalive_s": "1m30s",
            "max_message_bytes": "1MiB",
            "uds_group": "a group",
            "uds_allow_uid": ["0", "1000"],
            "insecure": "true",
        }
    )
    texts = as_texts(hub)
    assert (texts["keepalive_s"], texts["uds_allow_uid"], texts["insecure"]) == (["90"], ["0", "1000"], ["true"])
    assert "kubeconfig" not in texts
    assert HUB_OPTIONS.read(texts) == hub
    driver = DRIVER_OPTIONS.read({**DRIVER, "endpoint_mode": "600"})
    assert as_texts(driver)["endpoint_mode"] == ["0600"]
    assert DRIVER_OPTIONS.read(as_texts(driver)) == driver
    agent = EDGE_OPTIONS.read({**EDGE, "driver": ["/a.sock", "unix:///b c.sock"]})
    assert EDGE_OPTIONS.read(as_texts(agent)) == agent


def test_the_effective_settings_are_one_line_of_words() -> None:
    said = describe(EDGE_OPTIONS.read({**EDGE, "node": "n1", "driver": ["/a", "/b"], "keepalive_s": "1.5s"}))
    assert said.startswith("log_format=auto log_level=info verbosity=0 http=unset max_message_bytes=4194304 ")
    for part in (" keepalive_s=1.5 ", " hub=wss://hub:1 proxy=unset driver=/a,/b ", " relay_dir=unset "):
        assert part in said


def test_an_unknown_text_of_a_newer_process_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CSI_BRIDGE_HUB_NAME", "of this process")
    assert HUB_OPTIONS.read({"a_setting_to_come": ["1"]}).name == "hub"


def test_an_error_of_a_part_of_the_process_gets_the_variable_of_its_flag() -> None:
    named = HUB_OPTIONS.named(SettingsError("--state-dir", "/x", "another hub is using it"))
    assert str(named) == "CSI_BRIDGE_HUB_STATE_DIR or --state-dir=/x: another hub is using it"
    other = SettingsError("--no-flag-of-a-hub", "x", "no")
    assert HUB_OPTIONS.named(other) is other
