"""A proxy: an HTTP proxy between this machine and a hub. A dial asks it for a tunnel (CONNECT, RFC 9110, 9.3.6).

TLS with the hub runs through the tunnel from end to end: the proxy learns the hub's host and port, and nothing more.
"""

import asyncio
import ipaddress
import os
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from common.errors import DialError
from common.net.endpoint import Endpoint, is_loopback
from common.net.tcp import RawTcp, connect, describe_error
from common.parsers import HostPort
from common.session.limits import Limits

_USUAL_PORT = 80

# The variables, also in lower case, with the proxy of this machine's programs, and hosts to dial without one.
_USUAL = "HTTPS_PROXY"
_EXCEPTIONS = "NO_PROXY"


@dataclass(frozen=True, slots=True)
class Proxy:
    """An HTTP proxy. `str()` has no user and no password: it stands in logs and on pages."""

    address: HostPort
    user: str = ""
    password: str = field(default="", repr=False)

    def __str__(self) -> str:
        return f"http://{self.address}"


def read_proxy(text: str) -> Proxy:
    """A proxy from `http://[USER:PASSWORD@]HOST[:PORT]`; the scheme may be missing, as for curl and Go's programs."""
    try:
        found = urlsplit(text if "://" in text else f"http://{text}")
        host = found.hostname
        port = found.port
    except ValueError:
        host = None
        port = None
    if not host or found.scheme != "http" or found.path not in {"", "/"} or found.query or found.fragment:
        raise ValueError("must be http://HOST:PORT or http://USER:PASSWORD@HOST:PORT")
    return Proxy(HostPort(host, port or _USUAL_PORT), unquote(found.username or ""), unquote(found.password or ""))


def is_direct(endpoint: Endpoint, exceptions: str) -> bool:
    """Whether an address is dialled without a proxy: this machine's own, and those of `exceptions`.

    That is a list with commas, as in NO_PROXY for Go's programs (golang.org/x/net/http/httpproxy): `*`, hosts with the
    names below them, `.example.com` for these names alone, addresses, networks; each may have a port.
    """
    if is_loopback(endpoint.host):
        return True
    return any(_excepts(entry.strip().lower(), endpoint) for entry in exceptions.split(",") if entry.strip())


def _excepts(entry: str, endpoint: Endpoint) -> bool:
    host, separator, port = entry.rpartition(":")
    if separator and port.isdecimal() and not (":" in host and "[" not in host):  # else an address of IPv6
        if int(port) != endpoint.port:
            return False
        entry = host
    entry = entry.strip("[]")
    dialled = endpoint.host.lower()
    try:
        return ipaddress.ip_address(dialled) in ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return entry in {"*", dialled} or dialled.endswith(f".{entry.removeprefix('*').removeprefix('.')}")


async def through(proxy: Proxy | None, endpoint: Endpoint, limits: Limits) -> RawTcp | None:
    """A connection to the endpoint through a proxy, ready for TLS; None if this endpoint is dialled without one.

    Without `proxy`, that of the environment counts. It has half of the dial's time, so that the DialError names it.
    """
    usual = _variable(_USUAL)
    if not (proxy or usual) or is_direct(endpoint, _variable(_EXCEPTIONS)):
        return None
    try:
        proxy = proxy or read_proxy(usual)
    except ValueError as error:
        raise DialError(str(endpoint), f"{_USUAL} {error}") from None
    # These take memory that few nodes need.
    from websockets.asyncio.client import HTTPProxyConnection  # noqa: PLC0415
    from websockets.exceptions import InvalidProxyStatus, ProxyError  # noqa: PLC0415
    from websockets.proxy import Proxy as Asked  # noqa: PLC0415
    from websockets.uri import WebSocketURI  # noqa: PLC0415

    (host, port), limit_s = proxy.address, limits.hello_timeout_s / 2
    asked = Asked("http", host, port, proxy.user or None, proxy.password if proxy.user else None)
    target = WebSocketURI(endpoint.tls, endpoint.host, endpoint.port, "/", "")
    transport = None
    try:
        async with asyncio.timeout(limit_s):
            transport, connection = await connect(
                lambda: HTTPProxyConnection(target, asked, None), host, port, limit_s=limit_s
            )
            await connection.response
    except BaseException as error:
        if transport is not None:
            transport.set_protocol(asyncio.Protocol())  # websockets' own fails if the proxy has ended the connection
            transport.abort()
        match error:
            case InvalidProxyStatus():
                why = _refusal(proxy, error.response.status_code, error.response.reason_phrase)
            case ProxyError():
                why = f"{proxy} does not answer as an HTTP proxy does"
            case TimeoutError():
                why = f"the proxy {proxy} has made no connection within {limit_s:g} s"
            case OSError() | UnicodeError():
                why = f"the proxy {proxy} cannot be reached: {describe_error(error)}"
            case _:
                raise
        raise DialError(str(endpoint), why) from error
    raw = RawTcp()
    transport.set_protocol(raw)
    raw.connection_made(transport)
    return raw


def _variable(name: str) -> str:
    return os.environ.get(name.lower()) or os.environ.get(name) or ""


def _refusal(proxy: Proxy, status: int, reason: str) -> str:
    if status in {401, 407}:
        do = "it wants another user or password: give them as http://USER:PASSWORD@HOST:PORT"
    else:
        do = "ask whoever runs it to allow CONNECT to this host and port, or except the host by NO_PROXY"
    return f"the proxy {proxy} refuses the connection with {status} {reason}; {do}"
