"""An endpoint: a hub's address as an operator writes it: `unix:///path`, `ws://host:port` or `wss://host:port`."""

import ipaddress
from dataclasses import dataclass
from pathlib import Path

from common.parsers import host_port, unix_path


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A hub's address: either `path`, or `host` and `port`, with or without TLS. `text` is the operator's spelling."""

    text: str
    path: Path | None = None
    host: str = ""
    port: int = 0
    tls: bool = False

    def __str__(self) -> str:
        return self.text


def hub_endpoint(text: str) -> Endpoint:
    """The endpoint of a text. Raises ValueError, which says which texts are allowed."""
    scheme, separator, rest = text.partition("://")
    if separator and scheme in {"ws", "wss"}:
        # Other programs write a URL without a path with a slash at its end.
        address = host_port(rest.removesuffix("/"))
        return Endpoint(text, host=address.host, port=address.port, tls=scheme == "wss")
    if separator and scheme != "unix":
        raise ValueError("must be unix:///PATH, wss://HOST:PORT or ws://HOST:PORT")
    if not text.startswith(("/", "unix:")):
        raise ValueError("must be wss://HOST:PORT, ws://HOST:PORT or unix:///PATH, with the scheme before it")
    return Endpoint(text, path=unix_path(text))


def hub_endpoint_with_tls(text: str) -> Endpoint:
    endpoint = hub_endpoint(text)
    if not endpoint.tls:
        raise ValueError("must be wss://HOST:PORT")
    return endpoint


def is_loopback(host: str) -> bool:
    """Whether an address, or the name `localhost`, stays on this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
