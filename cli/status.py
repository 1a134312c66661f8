"""The status: what the hub on this host knows of its nodes and proxy drivers, as a table or as JSON."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import click

from cli.operator import connected
from cli.status_settings import StatusSettings
from cli.table import printable, table
from common.endpoint import Endpoint
from common.errors import BridgeError, timestamp
from common.limits import Limits
from common.messages import Kind

State = dict[str, Any]


async def ask(hub: Endpoint, *, limits: Limits) -> State:
    """The hub's state, put together from its parts: lists of one name are joined.

    Raises:
        BridgeError: there is no hub, the link to it was lost, or it did not tell all.
    """
    state: State = {"nodes": [], "drivers": []}
    async with connected(hub, limits=limits) as link:
        stream = link.open(Kind.STATUS)
        async for message in stream:
            for name, value in json.loads(message).items():
                if isinstance(value, list):
                    state.setdefault(name, []).extend(value)
                else:
                    state[name] = value
        assert stream.status is not None
        stream.acknowledge(delivered=True)
        if not stream.status.ok:
            raise BridgeError(f"the hub did not tell all: {stream.status.message}")
    return state


def show(state: State) -> Iterator[str]:
    """The state as lines for people: the hub, its nodes and the proxy drivers as tables, and what is wrong."""
    nodes, drivers = state["nodes"], state["drivers"]
    yield (
        f"{state['software']}: {state['connected']} of {state['known']} nodes connected "
        f"(at most {state['max_nodes']} are known), {len(drivers)} proxy drivers"
    )
    if nodes:
        yield ""
        yield from table(
            ("NODE", "STATE", "SINCE", "STREAMS", "ADDRESS", "DRIVERS"), [_node_row(node) for node in nodes]
        )
    if drivers:
        yield ""
        rows = [(driver["driver"], timestamp(driver["since"]), driver["address"]) for driver in drivers]
        yield from table(("PROXY DRIVER", "SINCE", "ADDRESS"), rows)
    wrong = list(_wrong(state))
    if wrong:
        yield ""
        yield from map(printable, wrong)


def _wrong(state: State) -> Iterator[str]:
    yield from (f"CONFLICT: {node['conflict']}" for node in state["nodes"] if node["conflict"])
    if state["trouble"]:
        yield f"NOT WRITTEN: the hub keeps its newest knowledge in memory alone, and tries again: {state['trouble']}"
    yield from (f"PROBLEM: {problem}" for problem in state["problems"])
    for loss in state["lost"]:
        yield f"LOST: {loss}; calls that name no node are refused until csi-bridge trust"


def run(settings: StatusSettings) -> int:
    """The command: 0 if the hub told its state, 1 with the reason on standard error if not."""
    try:
        state = asyncio.run(asyncio.wait_for(ask(settings.hub, limits=settings.limits()), settings.timeout_s))
    except BridgeError as error:
        click.echo(f"csi-bridge: {error}", err=True)
        return 1
    except TimeoutError:
        click.echo(f"csi-bridge: the hub at {settings.hub} has not told all within {settings.timeout_s:g} s", err=True)
        return 1
    if settings.json:
        click.echo(json.dumps(state, indent=2))
    else:
        for line in show(state):
            click.echo(line)
    return 0


def _node_row(node: State) -> tuple[str, ...]:
    return (
        node["node"],
        "connected" if node["connected"] else "offline",
        timestamp(node["since"]),
        str(node["streams"]),
        node["address"] or "-",
        ", ".join(sorted(node["drivers"])) or "-",
    )
