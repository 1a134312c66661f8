"""The status: an overview of the hub on this host, with all its problems."""

from collections.abc import Iterator

from cli.hub_state import State, tell
from cli.node_list import conflicts, unreported
from cli.operator_options import OperatorSettings
from cli.table import printable, table
from common.errors import timestamp


def show(state: State, width: int | None = None) -> Iterator[str]:
    """The state as lines for people: the hub, its nodes and the proxy drivers as tables, and all problems."""
    nodes, drivers = state["nodes"], state["drivers"]
    yield (
        f"{state['software']}: {state['connected']} of {state['known']} nodes connected "
        f"(limit {state['max_nodes']}), {len(drivers)} proxy driver{'' if len(drivers) == 1 else 's'}"
    )
    if nodes:
        yield ""
        yield from table(("NODE", "STATE", "SINCE", "DRIVERS"), [_row(node) for node in nodes], width=width)
    if drivers:
        yield ""
        rows = [(driver["driver"], timestamp(driver["since"]), driver["address"]) for driver in drivers]
        yield from table(("PROXY DRIVER", "SINCE", "ADDRESS"), rows, width=width)
    wrong = list(_wrong(state))
    if wrong:
        yield ""
        yield from map(printable, wrong)


def _wrong(state: State) -> Iterator[str]:
    yield from conflicts(state["nodes"])
    if state["trouble"]:
        yield f"NOT WRITTEN: the hub has its newest records in memory only, and tries to write them: {state['trouble']}"
    yield from (f"PROBLEM: {problem}" for problem in state["problems"])
    yield from (f"PROBLEM: {what}; {do}" for what, do in unreported(state["nodes"]))
    for loss in state["lost"]:
        yield f"LOST: {loss}; calls that name no node are refused until csi-bridge trust"
    if refused := state["refused"]:
        yield f"REFUSED: {len(refused)} peer{'' if len(refused) == 1 else 's'}; csi-bridge nodes says which and why"


def _row(node: State) -> tuple[str, ...]:
    return (
        node["node"],
        "connected" if node["connected"] else "offline",
        timestamp(node["since"]),
        ", ".join(sorted(node["drivers"])) or "-",
    )


def run(settings: OperatorSettings, *, as_json: bool) -> int:
    """The command: 0 if the hub told it, 1 with the reason on standard error if not."""
    return tell(settings, show, as_json=as_json)
