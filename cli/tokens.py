"""The commands `token create` and `token list`: the invitations with which nodes join the hub."""

import asyncio
from collections.abc import Iterator

from cli.hub_state import ask, tell
from cli.operator_options import OperatorSettings
from cli.order import give_order
from cli.table import printable, table
from common.operator_orders import CreateToken, NewToken
from common.pages.hub import TokenStatus
from common.pages.json_form import shown


def create(settings: OperatorSettings, asked: CreateToken) -> None:
    tell(settings, lambda how: asyncio.run(give_order(how, asked, NewToken)), lambda new, _width: [new.token])


def show(tokens: list[TokenStatus], width: int | None = None) -> Iterator[str]:
    if not tokens:
        yield "the hub has no tokens; csi-bridge token create makes one"
        return
    yield from table(("ID", "NODES", "DRIVERS", "STATE", "USED", "ENDS"), [_row(one) for one in tokens], width=width)
    joins = [(one.id, join) for one in tokens for join in one.joins]
    if joins:
        yield ""
    for token, it in joins:
        yield printable(f"JOINED: {it.node} at {shown(it.at)} from {it.address or 'an unknown address'}, with {token}")


def run_list(settings: OperatorSettings, *, as_json: bool) -> None:
    tell(settings, _look, show, (lambda tokens: {"tokens": tokens}) if as_json else None)


def _look(settings: OperatorSettings) -> list[TokenStatus]:
    return ask(settings.hub, "/tokens", list[TokenStatus], timeout_s=settings.timeout_s)


def _row(one: TokenStatus) -> tuple[str, ...]:
    nodes = f"{one.nodes} (replaced)" if one.replace else one.nodes
    return one.id, nodes, ", ".join(one.drivers) or "all", one.state, f"{one.used}/{one.uses}", shown(one.ends_at)
