"""The commands `forget`, `trust`, `deny`, `allow`, `fence` and `unfence`: an operator orders the hub."""

import asyncio
import json
import sys
from collections.abc import Awaitable
from typing import TypeVar

import click

from cli.operator import connected
from cli.operator_options import OperatorSettings
from cli.table import printable, say
from common.errors import BridgeError
from common.messages import Kind
from common.operator_orders import Allow, Deny, Done, Fence, Order, Unfence
from common.pages.json_form import decode, encode
from common.status import Code

T = TypeVar("T")


async def forget(settings: OperatorSettings, *, node: str, driver: str) -> str:
    """Let the hub forget a node, or one driver of it. Returns the success message.

    Raises:
        BridgeError: there is no hub, the link to it was lost, or it refused.
    """
    await _give(settings, Kind.FORGET, node=node, driver=driver)
    return f"the hub has forgotten {f'driver {driver} of ' if driver else ''}edge node {node}"


async def trust(settings: OperatorSettings) -> str:
    """Tell the hub that its records are complete again. Returns the success message.

    Raises:
        BridgeError: there is no hub, the link to it was lost, or it refused.
    """
    lost = json.loads(b"".join(await _give(settings, Kind.TRUST)))["lost"]
    return "\n".join(f"settled: {line}" for line in lost) or "the hub had lost nothing"


async def deny(settings: OperatorSettings, *, subject: str, why: str) -> str:
    """Let the hub deny a node or a certificate. Returns the success message. Errors as of `give_order`."""
    return "\n".join((await give_order(settings, Deny(subject=subject, why=why), Done)).said)


async def allow(settings: OperatorSettings, *, subject: str) -> str:
    """Let the hub allow a node or a certificate again. Returns the success message. Errors as of `give_order`."""
    return "\n".join((await give_order(settings, Allow(subject=subject), Done)).said)


_FENCE = (
    "The volumes of node {node} can then be detached from it and go to other nodes. If its machine still runs, two "
    "nodes write to one volume, and its data is lost."
)


def fence(settings: OperatorSettings, *, node: str, why: str, sure: bool) -> int:
    """Let the hub take a node for dead, after a question. Returns the exit code, as `run` does."""
    if not sure:
        say(_FENCE.format(node=printable(node)), err=True)
        if not sys.stdin.isatty():
            say(
                f"csi-bridge: node {node} is not fenced: there is no terminal to ask at; a script passes --yes",
                err=True,
            )
            return 1
        machine = f"the machine of node {printable(node)}, or the earlier one of this name"
        if not click.confirm(f"Is {machine}, off for certain, or cut off from its storage?"):
            say(f"csi-bridge: node {node} is not fenced", err=True)
            return 1
    return run(settings, _fence(settings, node, why))


async def _fence(settings: OperatorSettings, node: str, why: str) -> str:
    return "\n".join((await give_order(settings, Fence(node=node, why=why), Done)).said)


async def unfence(settings: OperatorSettings, *, node: str) -> str:
    """Let the hub guard a node's mounts again. Returns the success message. Errors as of `give_order`."""
    return "\n".join((await give_order(settings, Unfence(node=node), Done)).said)


async def give_order(settings: OperatorSettings, order: Order, answer: type[T]) -> T:
    """Give the hub an order of `common.operator_orders`. Returns its answer, of the type that the order names.

    Raises:
        BridgeError: there is no hub, the link to it was lost, it is too old for the order, or it refused.
    """
    said = await _give(settings, Kind.ORDER, encode(order), name=order.order)
    try:
        return decode(b"".join(said), answer)
    except ValueError as error:
        raise BridgeError(
            f"the hub at {settings.hub} is of another version, whose answer cannot be read here: {error}"
        ) from error


def run(settings: OperatorSettings, order: Awaitable[str]) -> int:
    """Give the order. Returns the exit code: 0, or 1 with the reason on standard error."""
    try:
        said = asyncio.run(in_time(settings, order))
    except BridgeError as error:
        say(f"csi-bridge: {error}", err=True)
        return 1
    say(said)
    return 0


async def in_time(settings: OperatorSettings, order: Awaitable[T]) -> T:
    """The answer to an order.

    Raises:
        BridgeError: those of the order; or the hub has not answered within `--timeout`.
    """
    try:
        async with asyncio.timeout(settings.timeout_s):
            return await order
    except TimeoutError:
        raise BridgeError(f"the hub at {settings.hub} has not answered in {settings.timeout_s:g} s") from None


async def _give(
    settings: OperatorSettings,
    kind: Kind,
    message: bytes | None = None,
    *,
    name: str = "",
    node: str = "",
    driver: str = "",
) -> list[bytes]:
    async with connected(settings.hub, limits=settings.limits()) as link:
        stream = link.open(kind, message, method=name, node=node, subject=driver)
        said = [message async for message in stream]
        assert stream.status is not None
        stream.acknowledge(delivered=True)
        if kind is Kind.ORDER and stream.status.code == Code.UNIMPLEMENTED:
            raise BridgeError(f"the hub at {settings.hub} is an older version that has no order {name}; upgrade it")
        if not stream.status.ok:
            raise BridgeError(stream.status.message)
    return said
