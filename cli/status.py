"""The status: what the hub on this host knows of its nodes and proxy drivers, as a table or as JSON."""

from collections.abc import Iterator

from cli.hub_state import State, tell
from cli.nodes import conflicts, node_table
from cli.status_settings import StatusSettings
from cli.table import printable, table
from common.errors import timestamp


def show(state: State) -> Iterator[str]:
    """The state as lines for people: the hub, its nodes and the proxy drivers as tables, and what is wrong."""
    nodes, drivers = state["nodes"], state["drivers"]
    yield (
        f"{state['software']}: {state['connected']} of {state['known']} nodes connected "
        f"(at most {state['max_nodes']} are known), {len(drivers)} proxy drivers"
    )
    if nodes:
        yield ""
        yield from node_table(nodes)
    if drivers:
        yield ""
        rows = [(driver["driver"], timestamp(driver["since"]), driver["address"]) for driver in drivers]
        yield from table(("PROXY DRIVER", "SINCE", "ADDRESS"), rows)
    wrong = list(_wrong(state))
    if wrong:
        yield ""
        yield from map(printable, wrong)


def _wrong(state: State) -> Iterator[str]:
    yield from conflicts(state["nodes"])
    if state["trouble"]:
        yield f"NOT WRITTEN: the hub keeps its newest knowledge in memory alone, and tries again: {state['trouble']}"
    yield from (f"PROBLEM: {problem}" for problem in state["problems"])
    for loss in state["lost"]:
        yield f"LOST: {loss}; calls that name no node are refused until csi-bridge trust"


def run(settings: StatusSettings) -> int:
    """The command: 0 if the hub told it, 1 with the reason on standard error if not."""
    return tell(settings, show, as_json=settings.json)
