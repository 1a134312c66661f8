"""What an operator may write, and what a wrong value is answered with."""

from dataclasses import FrozenInstanceError, dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from common.errors import SettingsError
from common.parsers import (
    LONGEST_SOCKET_PATH_BYTES,
    HostPort,
    Parser,
    bounded,
    choice,
    count,
    driver_name,
    duration,
    host_port,
    node_name,
    octal_mode,
    path,
    ratio,
    size,
    switch,
    unix_path,
    words,
)
from common.settings import REQUIRED, ProcessSettings, Settings, as_texts, describe, setting, specs


@dataclass(frozen=True, kw_only=True)
class KilnSettings(Settings):
    command: ClassVar[str] = "kiln"

    name: str = setting(REQUIRED, parse=words, help="The kiln's name.")
    bake_limit_s: float = setting("10m", parse=duration, help="How long a batch may bake.")
    chunk_bytes: int = setting("16KiB", parse=size, help="How much goes in at once.")
    batches: int = setting("4", parse=bounded(count, low="1", high="9"), unit="batches", help="How many at once.")
    sockets: tuple[Path, ...] = setting((), parse=unix_path, repeatable=True, flag="socket", help="Where to listen.")
    http: HostPort | None = setting(None, parse=host_port, help="Where to serve metrics.")
    mode: int = setting("0660", parse=octal_mode, help="The socket's mode.")
    cold: bool = setting("false", parse=switch, help="Do not heat.")
    key: str = setting("", parse=Parser(str, "KEY"), secret=True, help="Opens the door.")

    def __post_init__(self) -> None:
        if self.cold and self.batches > 1:
            raise self.wrong("batches", "a cold kiln takes one batch")


VALID: list[tuple[Parser[Any], str, object]] = [
    (duration, "10s", 10.0),
    (duration, "500ms", 0.5),
    (duration, "10m", 600.0),
    (duration, "1h30m", 5400.0),
    (duration, "1.5h", 5400.0),
    (duration, "2m0.5s", 120.5),
    (duration, "250us", 0.00025),
    (duration, "250µs", 0.00025),
    (duration, "0", 0.0),
    (duration, "7", 7.0),
    (duration, "0.25", 0.25),
    (duration, ".5s", 0.5),
    (size, "16384", 16384),
    (size, "4MiB", 4194304),
    (size, "4Mi", 4194304),
    (size, "4 MiB", 4194304),
    (size, "1GiB", 1073741824),
    (size, "4MB", 4000000),
    (size, "0", 0),
    (host_port, "127.0.0.1:10350", HostPort("127.0.0.1", 10350)),
    (host_port, "[::1]:1", HostPort("::1", 1)),
    (host_port, "[::]:0", HostPort("::", 0)),
    (host_port, "hub.example.org:65535", HostPort("hub.example.org", 65535)),
    (count, "0", 0),
    (count, "1024", 1024),
    (ratio, "0.2", 0.2),
    (ratio, "20%", 0.2),
    (ratio, "1", 1.0),
    (ratio, "0", 0.0),
    (octal_mode, "0660", 0o660),
    (octal_mode, "600", 0o600),
    (path, "/var/lib/csi-bridge", Path("/var/lib/csi-bridge")),
    (unix_path, "unix:///run/csi/csi.sock", Path("/run/csi/csi.sock")),
    (unix_path, "unix:/run/csi/csi.sock", Path("/run/csi/csi.sock")),
    (unix_path, "/run/csi/csi.sock", Path("/run/csi/csi.sock")),
    (switch, "true", True),
    (switch, "FALSE", False),
    (words, "edge node 7", "edge node 7"),
    (node_name, "n" * 253, "n" * 253),
    (driver_name, "d" * 63, "d" * 63),
    (choice("text", "json"), "json", "json"),
    (bounded(duration, low="1s", high="1h"), "1h", 3600.0),
]

INVALID: list[tuple[Parser[Any], str, str]] = [
    (duration, "", "must be a duration"),
    (duration, "-10s", "must be a duration"),
    (duration, "10 s", "must be a duration"),
    (duration, "10d", "must be a duration"),
    (duration, "s", "must be a duration"),
    (duration, "1h30", "must be a duration"),
    (duration, "inf", "must be a duration"),
    (duration, "nan", "must be a duration"),
    (duration, "1e3", "must be a duration"),
    (duration, "٣s", "must be a duration"),
    (duration, "87601h", "at most ten years"),
    (size, "", "whole number of bytes"),
    (size, "4m", "whole number of bytes"),
    (size, "1.5MiB", "whole number of bytes"),
    (size, "-1", "whole number of bytes"),
    (size, "4 PiB", "whole number of bytes"),
    (host_port, ":8080", "must name a host"),
    (host_port, "8080", "must be HOST:PORT"),
    (host_port, "localhost", "must be HOST:PORT"),
    (host_port, "localhost:", "must be HOST:PORT"),
    (host_port, "localhost:65536", "must be HOST:PORT"),
    (host_port, "::1:80", "must be HOST:PORT"),
    (host_port, "[::g]:80", "IPv6"),
    (host_port, "[]:80", "IPv6"),
    (host_port, "a b:80", "must be HOST:PORT"),
    (host_port, "http://a:80", "must be HOST:PORT"),
    (count, "-1", "whole number"),
    (count, "1_000", "whole number"),
    (count, "1.0", "whole number"),
    (count, "", "whole number"),
    (ratio, "1.01", "from 0 to 1"),
    (ratio, "101%", "from 0 to 1"),
    (ratio, "-0.1", "from 0 to 1"),
    (ratio, "half", "from 0 to 1"),
    (octal_mode, "0688", "octal"),
    (octal_mode, "rw-rw----", "octal"),
    (octal_mode, "06600", "octal"),
    (path, "", "must be a path"),
    (path, "a\0b", "must be a path"),
    (unix_path, "tcp://127.0.0.1:1", "must be a UNIX socket"),
    (unix_path, "unix://csi.sock", "absolute path"),
    (unix_path, "csi.sock", "absolute path"),
    (unix_path, "", "absolute path"),
    (unix_path, "/" + "x" * LONGEST_SOCKET_PATH_BYTES, "too long for a UNIX socket: 108 bytes"),
    (switch, "maybe", "true or false"),
    (words, "", "not be empty"),
    (words, "two\nlines", "without control characters"),
    (node_name, "", "not be empty"),
    (node_name, "n" * 254, "must be at most 253 characters long"),
    (driver_name, "d" * 64, "must be at most 63 characters long"),
    (choice("text", "json"), "xml", "one of text, json"),
    (bounded(duration, low="1s", high="1h"), "999ms", "at least 1s and at most 1h"),
    (bounded(count, low="1"), "0", "at least 1"),
    (bounded(count, high="9"), "10", "at most 9"),
]


@pytest.mark.parametrize(("parse", "text", "value"), VALID)
def test_a_parser_reads_what_it_allows(parse: Parser[Any], text: str, value: object) -> None:
    read = parse(text)
    assert read == pytest.approx(value) if isinstance(value, float) else read == value


@pytest.mark.parametrize(("parse", "text", "why"), INVALID)
def test_a_parser_says_what_is_allowed_when_it_refuses(parse: Parser[Any], text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse(text)


@pytest.mark.parametrize("text", ["127.0.0.1:10350", "[::1]:1", "localhost:0"])
def test_an_address_prints_as_it_is_written(text: str) -> None:
    assert str(host_port(text)) == text


def test_a_mode_prints_in_octal() -> None:
    assert str(octal_mode("660")) == "0660"


def test_what_is_not_given_has_the_default_read_by_the_same_parser() -> None:
    settings = KilnSettings.from_texts({"name": "k1"})
    assert settings == KilnSettings(name="k1")
    assert (settings.bake_limit_s, settings.chunk_bytes, settings.sockets, settings.http) == (600.0, 16384, (), None)


def test_what_is_given_replaces_the_default() -> None:
    settings = KilnSettings.from_texts(
        {"name": "k1", "bake_limit_s": "90s", "sockets": ["/a", "unix:///b"], "cold": "true", "batches": "1"}
    )
    assert (settings.bake_limit_s, settings.sockets, settings.cold) == (90.0, (Path("/a"), Path("/b")), True)


def test_settings_do_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        KilnSettings(name="k1").cold = True  # type: ignore[misc]  # the point of the test


def test_a_wrong_value_is_named_with_its_flag_its_variable_and_what_is_allowed() -> None:
    with pytest.raises(SettingsError) as caught:
        KilnSettings.from_texts({"name": "k1", "bake_limit_s": "soon"})
    assert str(caught.value) == (
        "CSI_BRIDGE_KILN_BAKE_LIMIT or --bake-limit=soon: "
        "must be a duration like 10s, 500ms or 1h30m (a plain number is seconds)"
    )


def test_one_wrong_value_of_several_is_named_alone() -> None:
    with pytest.raises(SettingsError, match=r"--socket=b: .*absolute path"):
        KilnSettings.from_texts({"name": "k1", "sockets": ["/a", "b"]})


def test_a_missing_required_setting_is_named_with_what_it_is_for() -> None:
    with pytest.raises(SettingsError, match=r"^CSI_BRIDGE_KILN_NAME or --name: required: the kiln's name$"):
        KilnSettings.from_texts({})


def test_settings_that_do_not_fit_each_other_are_refused_the_same_way() -> None:
    with pytest.raises(SettingsError, match=r"^CSI_BRIDGE_KILN_BATCHES or --batches=4: a cold kiln takes one batch$"):
        KilnSettings.from_texts({"name": "k1", "cold": "true"})


def test_what_a_module_found_at_start_under_a_flag_is_told_with_its_variable_too() -> None:
    found = SettingsError("--chunk", 16384, "the disk has other blocks")
    named = KilnSettings(name="k1").named(found)
    assert str(named) == "CSI_BRIDGE_KILN_CHUNK or --chunk=16384: the disk has other blocks"
    assert named.__cause__ is None


@pytest.mark.parametrize("variable", ["--no-flag-of-a-kiln", "CSI_BRIDGE_KILN_CHUNK or --chunk", "chunk"])
def test_what_is_named_by_no_flag_of_this_process_stays_as_it_is(variable: str) -> None:
    found = SettingsError(variable, "x", "no")
    assert KilnSettings(name="k1").named(found) is found


def test_a_secret_is_never_shown() -> None:
    strict = Parser(count, "KEY")

    @dataclass(frozen=True, kw_only=True)
    class Safe(Settings):
        key: int = setting("0", parse=strict, secret=True, help="Opens the door.")

    with pytest.raises(SettingsError) as caught:
        Safe.from_texts({"key": "hunter2"})
    assert "hunter2" not in str(caught.value)
    assert describe(Safe.from_texts({"key": "4711"})) == "key=***stripped***"


def test_a_long_wrong_value_is_cut() -> None:
    with pytest.raises(SettingsError) as caught:
        KilnSettings.from_texts({"name": "k1", "bake_limit_s": "x" * 10_000})
    assert len(str(caught.value)) < 300


def test_the_effective_settings_are_one_line_of_words() -> None:
    settings = KilnSettings.from_texts({"name": "k 1", "sockets": ["/a", "/b"], "http": "[::1]:80"})
    assert describe(settings) == (
        'name="k 1" bake_limit_s=600 chunk_bytes=16384 batches=4 sockets=/a,/b http=[::1]:80 mode=0660 cold=false '
        "key=***stripped***"
    )


def test_a_setting_tells_the_command_line_all_it_needs() -> None:
    by_name = {spec.name: spec for spec in specs(KilnSettings)}
    spec = by_name["bake_limit_s"]
    assert (spec.flag, spec.variable, spec.default) == ("--bake-limit", "CSI_BRIDGE_KILN_BAKE_LIMIT", "10m")
    assert by_name["name"].required
    assert by_name["sockets"].repeatable
    assert by_name["cold"].metavar == ""


def test_a_field_without_the_unit_of_its_parser_is_refused() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Sloppy(Settings):
        limit: float = setting("1s", parse=duration, help="How long.")

    with pytest.raises(TypeError, match="limit_s"):
        specs(Sloppy)


def test_a_field_that_is_no_setting_is_refused() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Sloppy(Settings):
        limit: int = 3

    with pytest.raises(TypeError, match=r"not made by setting\(\)"):
        specs(Sloppy)


def test_a_default_that_its_parser_refuses_is_found_when_the_class_is_made() -> None:
    with pytest.raises(ValueError, match="duration"):
        setting("soon", parse=duration, help="How long.")


def test_every_process_takes_the_same_log_and_http_settings() -> None:
    assert describe(ProcessSettings()) == "log_format=auto log_level=info verbosity=0 http=unset"


# -------------------- as texts --------------------


def test_settings_are_made_again_of_their_texts() -> None:
    given: dict[str, str | list[str]] = {
        "name": "a kiln",
        "bake_limit_s": "1h30m",
        "chunk_bytes": "4MiB",
        "batches": "1",
        "sockets": ["/a", "unix:///b c"],
        "http": "[::1]:80",
        "mode": "600",
        "cold": "true",
    }
    settings = KilnSettings.from_texts(given)
    texts = as_texts(settings)
    assert texts["sockets"] == ["/a", "/b c"]
    assert texts["mode"] == ["0600"]
    assert KilnSettings.from_texts(texts) == settings


def test_the_texts_hold_nothing_unset_and_no_secret() -> None:
    assert as_texts(KilnSettings.from_texts({"name": "k", "key": "4711"})).keys() == {
        "name", "bake_limit_s", "chunk_bytes", "batches", "mode", "cold",
    }  # fmt: skip
