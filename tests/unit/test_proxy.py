"""Which texts name a proxy, and which hubs are dialled without it."""

import pytest

from common.net.endpoint import hub_endpoint
from common.net.proxy import Proxy, is_direct, read_proxy
from common.parsers import HostPort


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("http://proxy.example:3128", Proxy(HostPort("proxy.example", 3128))),
        ("http://proxy.example/", Proxy(HostPort("proxy.example", 80))),
        ("[2001:db8::1]:3128", Proxy(HostPort("2001:db8::1", 3128))),
        ("http://ann:p%40ss@10.0.0.1:8080", Proxy(HostPort("10.0.0.1", 8080), "ann", "p@ss")),
    ],
)
def test_a_proxy_is_read_with_its_user_and_shown_without(text: str, found: Proxy) -> None:
    assert read_proxy(text) == found
    assert str(found) == f"http://{found.address}"
    assert "p@ss" not in repr(found)


@pytest.mark.parametrize(
    "text", ["", "https://p:1", "socks5://p:1", "http://:3128", "p:99999", "http://p:1/x", "http://["]
)
def test_what_is_no_http_proxy_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"must be http://HOST:PORT or http://USER:PASSWORD@HOST:PORT"):
        read_proxy(text)


@pytest.mark.parametrize(
    ("address", "exceptions", "direct"),
    [
        ("hub.example:8443", "", False),
        ("127.0.0.1:8443", "", True),
        ("localhost:8443", "", True),
        ("hub.example:8443", "*", True),
        ("hub.example:8443", "other.example, HUB.example", True),
        ("hub.example:8443", "example", True),
        ("hub.example:8443", ".example", True),
        ("hub.example:8443", ".hub.example", False),
        ("hub.example:8443", "ub.example", False),
        ("hub.example:8443", "hub.example:8443", True),
        ("hub.example:8443", "hub.example:443", False),
        ("hub.example:8443", "hub.example:²", False),
        ("192.0.2.7:8443", "192.0.2.0/24", True),
        ("192.0.2.7:8443", "198.51.100.0/24,192.0.2.7", True),
        ("192.0.2.7:8443", "192.0.2.0/24:443", False),
        ("[2001:db8::7]:8443", "2001:db8::/32", True),
        ("[2001:db8::7]:8443", "[2001:db8::7]:8443", True),
        ("[2001:db8::7]:8443", "2001:db8::8,,192.0.2.0/24", False),
    ],
)
def test_this_machine_and_the_exceptions_are_dialled_without_a_proxy(
    address: str, exceptions: str, *, direct: bool
) -> None:
    assert is_direct(hub_endpoint(f"wss://{address}"), exceptions) is direct
