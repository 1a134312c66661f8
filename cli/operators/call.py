"""The command `call`: makes one CSI call through the hub's UNIX socket, with JSON in and JSON out.

It is for debugging and for tests.
"""

import asyncio
import base64
import json
import secrets
import sys
from pathlib import Path

import click
from google.protobuf import json_format

from cli.operators.operator import connected
from cli.operators.operator_options import OperatorSettings
from cli.operators.table import say
from common.csi.methods import METHODS, PREFIX, Method
from common.csi.redact import STRIPPED, redacted
from common.messages import Kind
from common.status import Status, code_name


def find_method(name: str) -> str:
    if name.startswith(PREFIX):
        return name
    found = [path for path in METHODS if path.rpartition("/")[2] == name or path == f"/csi.v1.{name}"]
    if len(found) != 1:
        raise click.BadParameter(f"no CSI method is called {name}; a whole path, /csi.v1.…/…, is sent as it is")
    return found[0]


def encode_request(path: str, text: str) -> bytes:
    try:
        if text == "-":
            text = sys.stdin.read()
        elif text.startswith("@"):
            text = Path(text[1:]).read_text()
    except (OSError, ValueError) as error:  # there is no such file, or it is not UTF-8
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


def secrets_in(path: str, text: str, request: bytes) -> str:
    # every user of this machine can read the command line of every process (proc_pid_cmdline(5))
    method = METHODS.get(path)
    if method is None or text == "-" or text.startswith("@"):
        return ""
    if STRIPPED not in json.dumps(redacted(method.request.FromString(request))):
        return ""
    return (
        "warning: other users see the secrets of this request in the process list, and your shell may keep them in its "
        "history; write the request to a file that only you can read, and pass @FILE, or pass - and standard input"
    )


def show(method: Method | None, message: bytes) -> str:
    if method is None:
        return json.dumps({"base64": base64.b64encode(message).decode()})
    return json.dumps(redacted(method.response.FromString(message)), indent=None if method.streaming else 2)


async def call(settings: OperatorSettings, path: str, request: bytes, *, driver: str, node: str) -> Status:
    async with connected(settings.hub, limits=settings.limits()) as link:
        stream = link.open(
            Kind.CALL,
            request,
            subject=driver,
            method=path,
            node=node,
            call=secrets.token_hex(8),
            timeout_s=settings.timeout_s,
        )
        async for message in stream:
            say(show(METHODS.get(path), message))
        assert stream.status is not None
        stream.acknowledge(delivered=True)
        return stream.status


def run(settings: OperatorSettings, *, driver: str, node: str, name: str, text: str) -> int:
    path = find_method(name)
    request = encode_request(path, text)
    if warning := secrets_in(path, text, request):
        click.echo(f"csi-bridge: {warning}", err=True)
    status = asyncio.run(call(settings, path, request, driver=driver, node=node))
    if not status.ok:
        say(f"{code_name(status.code)} (from the {status.origin}): {status.message}", err=True)
    return 0 if status.ok else 1
