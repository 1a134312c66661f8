"""The commands `forget`, `trust`, `deny`, `allow`, `fence`, `unfence` and those of tokens: an operator's orders."""

import asyncio
from typing import TypeVar

from cli.operators.operator import connected
from cli.operators.operator_options import OperatorSettings
from cli.operators.table import confirm, say
from common.errors import BridgeError
from common.messages import Kind
from common.operator_orders import CreateToken, Done, Fence, NewToken, Order
from common.pages.json_form import decode, encode
from common.status import Code

T = TypeVar("T")

_FENCE = (
    "The volumes of node {node} can then be detached from it and go to other nodes. If its machine still runs, two "
    "nodes write to one volume, and its data is lost."
)


def fence(settings: OperatorSettings, order: Fence, *, sure: bool) -> None:
    node = order.node
    if not sure:
        say(_FENCE.format(node=node), err=True)
        machine = f"the machine of node {node}, or the earlier one of this name"
        confirm(f"Is {machine}, off for certain, or cut off from its storage?", f"node {node} is not fenced")
    run(settings, order)


def run(settings: OperatorSettings, order: Order) -> None:
    for line in asyncio.run(give_order(settings, order, Done)).said:
        say(line)


def create_token(settings: OperatorSettings, order: CreateToken) -> None:
    say(asyncio.run(give_order(settings, order, NewToken)).token)


async def give_order(settings: OperatorSettings, order: Order, answer: type[T]) -> T:
    """Give the hub an order. Raises BridgeError if it refuses, is too old for it, or has not answered in time."""
    try:
        async with asyncio.timeout(settings.timeout_s):
            said = await _give(settings, order)
    except TimeoutError:
        raise BridgeError(f"the hub at {settings.hub} has not answered in {settings.timeout_s:g} s") from None
    try:
        return decode(said, answer)
    except ValueError as error:
        raise BridgeError(
            f"the hub at {settings.hub} is of another version, whose answer cannot be read here: {error}"
        ) from error


async def _give(settings: OperatorSettings, order: Order) -> bytes:
    async with connected(settings.hub, limits=settings.limits()) as link:
        stream = link.open(Kind.ORDER, encode(order), method=order.order)
        said = [message async for message in stream]
        assert stream.status is not None
        stream.acknowledge(delivered=True)
    if stream.status.code == Code.UNIMPLEMENTED:
        raise BridgeError(f"the hub at {settings.hub} is an older version that has no order {order.order}; upgrade it")
    if not stream.status.ok:
        raise BridgeError(stream.status.message)
    return b"".join(said)
