"""The values that an operator may write, and what is said of any other text."""

from collections.abc import Callable
from pathlib import Path

import pytest

from common.parsers import (
    LONGEST_SOCKET_PATH_BYTES,
    HostPort,
    driver_name,
    duration,
    host_port,
    is_label_key,
    is_label_value,
    node_name,
    octal_mode,
    size,
    unix_path,
    words,
)

Parser = Callable[[str], object]

VALID: list[tuple[Parser, str, object]] = [
    (duration, "10s", 10.0),
    (duration, "500ms", 0.5),
    (duration, "1h30m", 5400.0),
    (duration, "1.5h", 5400.0),
    (duration, "2m0.5s", 120.5),
    (duration, "250µs", 0.00025),
    (duration, "0", 0.0),
    (duration, "7", 7.0),
    (duration, ".5s", 0.5),
    (size, "16384", 16384),
    (size, "4MiB", 4194304),
    (size, "4 MiB", 4194304),
    (size, "1GiB", 1073741824),
    (size, "4MB", 4000000),
    (size, "0", 0),
    (host_port, "127.0.0.1:10350", HostPort("127.0.0.1", 10350)),
    (host_port, "[::1]:1", HostPort("::1", 1)),
    (host_port, "hub.example.org:65535", HostPort("hub.example.org", 65535)),
    (octal_mode, "0660", 0o660),
    (octal_mode, "600", 0o600),
    (unix_path, "unix:///run/csi/csi.sock", Path("/run/csi/csi.sock")),
    (unix_path, "unix:/run/csi/csi.sock", Path("/run/csi/csi.sock")),
    (unix_path, "/run/csi/csi.sock", Path("/run/csi/csi.sock")),
    (words, "edge node 7", "edge node 7"),
    (node_name, "n" * 253, "n" * 253),
    (driver_name, "d" * 63, "d" * 63),
]

INVALID: list[tuple[Parser, str, str]] = [
    (duration, "", "must be a duration"),
    (duration, "-10s", "must be a duration"),
    (duration, "10 s", "must be a duration"),
    (duration, "10d", "must be a duration"),
    (duration, "1h30", "must be a duration"),
    (duration, "inf", "must be a duration"),
    (duration, "1e3", "must be a duration"),
    (duration, "٣s", "must be a duration"),
    (duration, "87601h", "at most ten years"),
    (size, "", "whole number of bytes"),
    (size, "4m", "whole number of bytes"),
    (size, "1.5MiB", "whole number of bytes"),
    (size, "4 PiB", "whole number of bytes"),
    (host_port, ":8080", "must name a host"),
    (host_port, "8080", "must be HOST:PORT"),
    (host_port, "localhost", "must be HOST:PORT"),
    (host_port, "localhost:65536", "must be HOST:PORT"),
    (host_port, "::1:80", "must be HOST:PORT"),
    (host_port, "[::g]:80", "IPv6"),
    (host_port, "[]:80", "IPv6"),
    (host_port, "a b:80", "must be HOST:PORT"),
    (host_port, "http://a:80", "must be HOST:PORT"),
    (octal_mode, "0688", "octal"),
    (octal_mode, "rw-rw----", "octal"),
    (octal_mode, "06600", "octal"),
    (unix_path, "tcp://127.0.0.1:1", "must be a UNIX socket"),
    (unix_path, "unix://csi.sock", "absolute path"),
    (unix_path, "", "absolute path"),
    (unix_path, "/" + "x" * LONGEST_SOCKET_PATH_BYTES, "too long for a UNIX socket: 108 bytes"),
    (words, "", "not be empty"),
    (words, "two\nlines", "without control characters"),
    (node_name, "", "not be empty"),
    (node_name, "n" * 254, "must be at most 253 characters long"),
    (driver_name, "d" * 64, "must be at most 63 characters long"),
]


@pytest.mark.parametrize(("parse", "text", "value"), VALID)
def test_a_parser_reads_what_it_allows(parse: Parser, text: str, value: object) -> None:
    read = parse(text)
    assert read == pytest.approx(value) if isinstance(value, float) else read == value


@pytest.mark.parametrize(("parse", "text", "why"), INVALID)
def test_a_parser_says_what_is_allowed_when_it_refuses(parse: Parser, text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse(text)


@pytest.mark.parametrize("text", ["127.0.0.1:10350", "[::1]:1", "localhost:0"])
def test_an_address_prints_as_it_is_written(text: str) -> None:
    assert str(host_port(text)) == text


def test_a_mode_prints_in_octal() -> None:
    assert str(octal_mode("660")) == "0660"


def test_label_values_are_those_that_kubernetes_takes() -> None:
    assert all(map(is_label_value, ["", "a", "A_b-c.9", "a" * 63]))
    assert not any(map(is_label_value, ["_a", "a-", "a" * 64, "a b", "é", "a\n"]))


def test_label_keys_are_those_that_kubernetes_takes() -> None:
    assert all(map(is_label_key, ["zone", "csi-bridge.io/node", "a" * 63, f"{'d' * 253}/k"]))
    assert not any(
        map(is_label_key, ["", "/k", "Up.io/k", "a/b/c", f"{'d' * 254}/k", "a" * 64, "k/", "a..b/k", "-a.b/k"])
    )
