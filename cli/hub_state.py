"""The hub's state, as an operator is told it over the hub's UNIX socket."""

import asyncio
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import click

from cli.json_text import json_text
from cli.operator import connected
from cli.operator_options import OperatorSettings
from cli.table import terminal_width
from common.endpoint import Endpoint
from common.errors import BridgeError
from common.limits import Limits
from common.messages import Kind

State = dict[str, Any]

_UNTOLD: State = {"calls": 0, "last_error": None, "software": "", "versions": {}, "unreported": []}
"""What an older hub does not tell of a node."""

VOLUMES = "volumes"
"""The question for the volumes that the hub knows of; the empty one is for all else."""


async def ask(hub: Endpoint, *, limits: Limits, about: str = "") -> State:
    """What the hub tells, put together from its parts: lists of one name are joined.

    Raises:
        BridgeError: there is no hub, the link to it was lost, or it did not tell all.
    """
    state: State = {"nodes": [], "drivers": [], "refused": [], "settings": {}} if not about else {}
    async with connected(hub, limits=limits) as link:
        stream = link.open(Kind.STATUS, subject=about)
        async for message in stream:
            for name, value in json.loads(message).items():
                if isinstance(value, list):
                    state.setdefault(name, []).extend(value)
                else:
                    state[name] = value
        assert stream.status is not None
        stream.acknowledge(delivered=True)
        if not stream.status.ok:
            raise BridgeError(f"the hub did not send all of its state: {stream.status.message}")
    if not about:
        state["nodes"] = [_UNTOLD | node for node in state["nodes"]]
    elif about not in state:
        raise BridgeError(f"the hub at {hub} is an older version, which does not report its {about}")
    return state


def tell(
    settings: OperatorSettings,
    show: Callable[[State, int | None], Iterable[str]],
    *,
    as_json: bool,
    only: Sequence[str] = (),
    about: str = "",
) -> int:
    """The command: ask, and print it. 0 if the hub told it, 1 with the reason on standard error if not.

    Args:
        settings: where the hub is, and how long it may take.
        show: makes lines for people of the state, for a terminal so wide.
        as_json: whether the state itself is printed.
        only: these parts of it; all without any.
        about: what is asked for.
    """
    try:
        state = asyncio.run(_in_time(settings, about))
    except BridgeError as error:
        click.echo(f"csi-bridge: {error}", err=True)
        return 1
    if as_json:
        click.echo(json_text({name: state[name] for name in only or state}))
    else:
        for line in show(state, terminal_width()):
            click.echo(line)
    return 0


async def _in_time(settings: OperatorSettings, about: str) -> State:
    try:
        async with asyncio.timeout(settings.timeout_s):
            return await ask(settings.hub, limits=settings.limits(), about=about)
    except TimeoutError:
        raise BridgeError(f"the hub at {settings.hub} has not sent its state within {settings.timeout_s:g} s") from None
