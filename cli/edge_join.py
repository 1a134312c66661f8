"""The command `edge join`: gives this node an identity from a hub, with a token."""

import asyncio
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

import click

from cli.table import say
from common.enrolment import JoinToken, parse_token
from common.errors import BridgeError, SettingsError
from common.limits import Limits
from common.parsers import node_name
from common.proxy import Proxy
from edge.join import join


@dataclass(frozen=True, kw_only=True)
class Question:
    """The arguments of the command."""

    token: str  # the token's line; `@FILE` reads it from a file, `-` from standard input
    node: str | None  # the node's name; None for the name of this host, as the kubelet does
    state_dir: Path
    proxy: Proxy | None
    timeout_s: float  # of each connection to the hub


def run(question: Question, usual_state_dir: Path) -> int:
    token, node = _token(question.token), question.node or _host_name()
    try:
        limits = Limits(hello_timeout_s=question.timeout_s)
        joined = asyncio.run(join(token, node, question.state_dir, limits=limits, proxy=question.proxy))
    except BridgeError as error:
        told = str(error) if isinstance(error, SettingsError) else f"node {node} has not joined: {error}"
        say(f"csi-bridge: {told}", err=True)
        return 1
    flag = "" if question.state_dir == usual_state_dir else f" --state-dir={question.state_dir}"
    say(f"node {joined.node} has joined the hub at {', '.join(joined.hubs)}")
    say(f"start its agent: csi-bridge edge run{flag}")
    return 0


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
