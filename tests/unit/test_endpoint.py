"""Where a hub listens, as an operator writes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.endpoint import Endpoint, hub_endpoint, is_loopback


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("unix:///run/hub.sock", Endpoint("unix:///run/hub.sock", path=Path("/run/hub.sock"))),
        ("unix:/run/hub.sock", Endpoint("unix:/run/hub.sock", path=Path("/run/hub.sock"))),
        ("/run/hub.sock", Endpoint("/run/hub.sock", path=Path("/run/hub.sock"))),
        ("wss://hub.example:10350", Endpoint("wss://hub.example:10350", host="hub.example", port=10350, tls=True)),
        ("wss://hub.example:10350/", Endpoint("wss://hub.example:10350/", host="hub.example", port=10350, tls=True)),
        ("ws://127.0.0.1:1", Endpoint("ws://127.0.0.1:1", host="127.0.0.1", port=1)),
        ("wss://[::1]:443", Endpoint("wss://[::1]:443", host="::1", port=443, tls=True)),
    ],
)
def test_an_endpoint_is_a_socket_or_an_address(text: str, endpoint: Endpoint) -> None:
    assert hub_endpoint(text) == endpoint
    assert str(endpoint) == text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "must be wss://HOST:PORT, ws://HOST:PORT or unix:///PATH"),
        ("hub.sock", "must be wss://HOST:PORT, ws://HOST:PORT or unix:///PATH"),
        ("localhost:10350", "must be wss://HOST:PORT, ws://HOST:PORT or unix:///PATH"),
        ("unix://hub.sock", "must be the absolute path"),
        ("http://hub:1", "must be unix:///PATH, wss://HOST:PORT or ws://HOST:PORT"),
        ("tcp://hub:1", "must be unix:///PATH, wss://HOST:PORT or ws://HOST:PORT"),
        ("WSS://hub:1", "must be unix:///PATH, wss://HOST:PORT or ws://HOST:PORT"),
        ("wss://hub", "must be HOST:PORT"),
        ("wss://hub:70000", "must be HOST:PORT"),
        ("wss://hub:1/path", "must be HOST:PORT"),
        ("wss://user:word@hub:1", "must be HOST:PORT"),
        ("wss://:1", "must name a host"),
        ("unix:///" + "x" * 107, "is too long for a UNIX socket"),
    ],
)
def test_what_is_no_endpoint_says_what_is_allowed(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        hub_endpoint(text)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10", "::1", "localhost"])
def test_a_loopback_address_stays_on_this_machine(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "hub.example", "localhost.example", ""])
def test_any_other_address_does_not(host: str) -> None:
    assert not is_loopback(host)
