"""A call by hand: any CSI method, through the hub's UNIX socket, JSON in and JSON out. For debugging and for tests."""

import asyncio
import base64
import json
import secrets
import sys
from pathlib import Path
from typing import NoReturn

import click
from google.protobuf import json_format

from common.csi.methods import METHODS, Method, is_csi
from common.dial import dial
from common.endpoint import Endpoint
from common.errors import BridgeError, NotCarried
from common.limits import Limits
from common.link import Link, Stream
from common.messages import Kind, Reason
from common.redact import redacted
from common.status import Origin, Status, code_name
from common.version import introduce


class _Operator:
    """An operator's end of a link (`common.link.LinkHandler`): it opens streams and serves none."""

    origin = Origin.PROXY

    def greeted(self, link: Link) -> None:
        """The hub welcomed us."""

    async def serve(self, _stream: Stream) -> NoReturn:
        """The hub opens no streams to an operator."""
        raise NotCarried("a stream", "an operator serves none")

    def draining(self, link: Link, message: str) -> None:
        """The hub is shutting down: the call under way is finished first."""

    def refused(self, link: Link, reason: str, message: str) -> None:
        """`dial()` raises it."""

    def closed(self, link: Link, reason: str, message: str) -> None:
        """The stream that waits raises it."""


def find_method(name: str) -> str:
    """The path of a method as a person writes it: `CreateVolume`, `Controller/CreateVolume` or the whole path.

    Raises:
        click.BadParameter: there is no such method.
    """
    if is_csi(name):
        return name
    found = [path for path in METHODS if path.rpartition("/")[2] == name or path == f"/csi.v1.{name}"]
    if len(found) != 1:
        raise click.BadParameter(f"no CSI method is called {name}; a whole path, /csi.v1.…/…, is sent as it is")
    return found[0]


def encode_request(path: str, text: str) -> bytes:
    """The request's bytes from JSON; `@FILE` reads a file, `-` standard input.

    Raises:
        click.BadParameter: it cannot be read, or is not JSON of the method's request.
    """
    try:
        if text == "-":
            text = sys.stdin.read()
        elif text.startswith("@"):
            text = Path(text[1:]).read_text()
    except (OSError, ValueError) as error:  # not there, or not UTF-8
        raise click.BadParameter(f"cannot read the request: {error}") from error
    method = METHODS.get(path)
    if method is None:
        if text.strip() not in {"", "{}"}:
            raise click.BadParameter(f"{path} is not in csi.proto: only an empty request can be sent")
        return b""
    try:
        return json_format.Parse(text or "{}", method.request()).SerializeToString()
    except json_format.ParseError as error:
        raise click.BadParameter(f"not a {method.request.DESCRIPTOR.name}: {error}") from error


def show(method: Method | None, message: bytes) -> str:
    """One message of the answer as JSON without secrets; base64 if the method is not in csi.proto."""
    if method is None:
        return json.dumps({"base64": base64.b64encode(message).decode()})
    return json.dumps(redacted(method.response.FromString(message)), indent=None if method.streaming else 2)


async def call(endpoint: Endpoint, *, driver: str, node: str, path: str, request: bytes, timeout_s: float) -> Status:
    """Make the call, print each message of the answer, and return the status.

    Raises:
        BridgeError: there is no hub, or the link to it was lost.
    """
    hello = introduce("operator", "operator", instance=secrets.token_hex(8))
    link = await dial(endpoint, hello, _Operator(), limits=Limits())
    try:
        stream = link.open(
            Kind.CALL, request, subject=driver, method=path, node=node, call=secrets.token_hex(8), timeout_s=timeout_s
        )
        async for message in stream:
            click.echo(show(METHODS.get(path), message))
        assert stream.status is not None
        stream.acknowledge(delivered=True)
        return stream.status
    finally:
        link.goodbye(Reason.DONE, "the call is finished")
        await link.wait_closed()


def run(endpoint: Endpoint, *, driver: str, node: str, name: str, text: str, timeout_s: float) -> int:
    """The command: 0 on OK, 1 on any other status, with the status on standard error."""
    path = find_method(name)
    request = encode_request(path, text)
    try:
        status = asyncio.run(call(endpoint, driver=driver, node=node, path=path, request=request, timeout_s=timeout_s))
    except BridgeError as error:
        click.echo(f"csi-bridge: {error}", err=True)
        return 1
    if not status.ok:
        click.echo(f"{code_name(status.code)} (from the {status.origin}): {status.message}", err=True)
    return 0 if status.ok else 1
