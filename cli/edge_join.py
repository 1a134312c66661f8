"""The command `edge join`: gives this node an identity from a hub, with a token."""

import asyncio
import socket
import sys
from pathlib import Path

import click

from cli.operators.table import say
from common.errors import BridgeError, SettingsError
from common.net.enrolment import JoinToken, parse_token
from common.net.proxy import Proxy
from common.parsers import node_name
from common.session.limits import Limits
from edge.identity.join import join


def run(
    token: str, node: str | None, state_dir: Path, *, usual_state_dir: Path, proxy: Proxy | None, timeout_s: float
) -> None:
    read = _token(token)
    node = node or _host_name()
    try:
        joined = asyncio.run(join(read, node, state_dir, limits=Limits(hello_timeout_s=timeout_s), proxy=proxy))
    except SettingsError:
        raise
    except BridgeError as error:
        raise BridgeError(f"node {node} has not joined: {error}") from error
    flag = "" if state_dir == usual_state_dir else f" --state-dir={state_dir}"
    say(f"node {joined.node} has joined the hub at {', '.join(joined.hubs)}")
    say(f"start its agent: csi-bridge edge run{flag}")


def _token(text: str) -> JoinToken:
    try:
        if text == "-":
            text = sys.stdin.readline()
        elif text.startswith("@"):
            text = Path(text[1:]).read_text()
        return parse_token(text)
    except (OSError, ValueError) as error:
        raise click.BadParameter(str(error), param_hint="TOKEN") from error


def _host_name() -> str:
    # as the kubelet chooses it (pkg/util/node, GetHostname)
    name = socket.gethostname().lower()
    try:
        return node_name(name)
    except ValueError as error:
        raise click.BadParameter(f"this host is called {name!r}, which names no node: {error}; say --node") from error
