"""The command `status`: shows an overview of the hub on this host, with all its problems."""

from collections.abc import Iterator

from cli.operators.hub_state import HubState, ask_state, standby
from cli.operators.hub_state import as_json as state_as_json
from cli.operators.node_list import conflicts, distrusted, state_of, unreported
from cli.operators.operator_options import OperatorSettings
from cli.operators.table import answer, paragraph, table
from common.pages.hub import ElectionStatus, NodeStatus
from common.pages.json_form import shown


def show(state: HubState) -> Iterator[str]:
    hub = state.hub
    nodes = state.nodes
    drivers = state.hub.drivers
    yield (
        f"{hub.software}: {hub.connected} of {hub.known} nodes connected "
        f"(limit {hub.max_nodes}), {len(drivers)} proxy driver{'' if len(drivers) == 1 else 's'}"
        if hub.leads
        else standby(hub)
    )
    if nodes:
        rows = [_row(node) for node in nodes]
        yield from paragraph(table(("NODE", "STATE", "SINCE", "DRIVERS"), rows))
    if drivers:
        rows = [(driver.driver, shown(driver.since), driver.address) for driver in drivers]
        yield from paragraph(table(("PROXY DRIVER", "SINCE", "ADDRESS"), rows))
    if hub.elections:
        head = ("SHARED DRIVER", "SERVED BY", "SINCE", "EPOCH", "WHY")
        yield from paragraph(table(head, [_election(it) for it in hub.elections]))
    yield from paragraph(problems(state))


def problems(state: HubState) -> Iterator[str]:
    hub = state.hub
    yield from conflicts(state.nodes)
    yield from distrusted(state.nodes)
    if hub.trouble:
        yield f"NOT WRITTEN: the hub has its newest records in memory only, and tries to write them: {hub.trouble}"
    yield from (f"EXPIRES: {sentence}" for sentence in hub.ending)
    yield from (f"PROBLEM: {problem}" for problem in hub.problems)
    for it in hub.elections:
        if it.trouble:
            who = f"edge node {it.node}, which serves driver {it.driver}, {it.trouble}" if it.node else ""
            yield f"PROBLEM: {who or f'nobody serves driver {it.driver}: {it.trouble}'}"
        elif not it.standby:
            reasons = "; ".join(f"edge node {node} {why}" for node, why in it.unfit.items())
            yield f"PROBLEM: no node but {it.node} can serve driver {it.driver}: {reasons or 'no other one runs it'}"
        for pattern in it.unmatched:
            yield f"PROBLEM: no node that runs driver {it.driver} fits {pattern} of --candidates or --prefer"
    yield from (f"PROBLEM: {what}; {do}" for what, do in unreported(state.nodes))
    for loss in hub.lost:
        yield f"LOST: {loss}; calls that name no node are refused until csi-bridge trust"
    if refused := hub.refused:
        yield f"REFUSED: {len(refused)} peer{'' if len(refused) == 1 else 's'}; csi-bridge nodes says which and why"


def _row(node: NodeStatus) -> tuple[str, ...]:
    return node.node, state_of(node), shown(node.since), ", ".join(sorted(node.drivers)) or "-"


def _election(it: ElectionStatus) -> tuple[str, ...]:
    return it.driver, it.node or "-", shown(it.since) if it.since is not None else "-", str(it.epoch), it.why or "-"


def run(settings: OperatorSettings, *, as_json: bool) -> None:
    state = ask_state(settings.hub, timeout_s=settings.timeout_s)
    answer(show(state), state_as_json(state), as_json=as_json)
