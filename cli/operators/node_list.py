"""The command `nodes`: shows every edge node that the hub on this host knows, with its calls and last failure."""

from collections.abc import Iterator, Sequence

from cli.operators.hub_state import HubState, ask_state, standby
from cli.operators.hub_state import as_json as state_as_json
from cli.operators.operator_options import OperatorSettings
from cli.operators.table import age, answer, paragraph, table
from common.errors import BridgeError
from common.pages.hub import NodeStatus, Refusal
from common.pages.json_form import shown


def state_of(node: NodeStatus) -> str:
    return "connected" if node.connected else "fenced" if node.fenced else "offline"


def conflicts(nodes: Sequence[NodeStatus]) -> Iterator[str]:
    yield from (f"CONFLICT: {node.conflict}" for node in nodes if node.conflict)


def unreported(nodes: Sequence[NodeStatus]) -> Iterator[tuple[str, str]]:
    for node in nodes:
        for driver in node.unreported:
            what = f"edge node {node.node} is connected and no longer reports driver {driver}"
            do = (
                f"see that the vendor's driver and its node-driver-registrar run there; if the driver is gone for "
                f"good, run csi-bridge forget {node.node} {driver}"
            )
            yield what, do


def distrusted(nodes: Sequence[NodeStatus]) -> Iterator[str]:
    for node in nodes:
        for driver, why in node.refused.items():
            yield f"REFUSED: edge node {node.node} gets no call of driver {driver}: {why}"
        for driver, missing in node.lacking.items():
            yield (
                f"PROBLEM: driver {driver} on edge node {node.node} lacks {', '.join(missing)}, which it has on most "
                f"nodes; calls that need it are refused there; run the same version of the driver on all nodes"
            )
        yield from (f"PROBLEM: {problem}" for problem in node.problems)


def last_errors(nodes: Sequence[NodeStatus]) -> Iterator[str]:
    for node in nodes:
        if (error := node.last_error) is not None:
            method = error.method.rpartition("/")[2]
            yield (
                f"LAST ERROR: {node.node}: {shown(error.at)} {method} of {error.driver} ended with "
                f"{error.code} (from the {error.by}): {error.message}"
            )


def refusals(refused: Sequence[Refusal]) -> Iterator[str]:
    for one in refused:
        who = f"{one.role} {one.name} from {one.address}" if one.role else f"a peer without a hello from {one.address}"
        times = f" ({one.times:,} times)" if one.times > 1 else ""
        yield f"REFUSED: {shown(one.at)} {who}: {one.why}{times}"


def show(state: HubState) -> Iterator[str]:
    nodes = state.nodes
    if nodes:
        head = ("NODE", "STATE", "SINCE", "CALLS", "ADDRESS", "DRIVERS")
        yield from table(head, [_row(node) for node in nodes])
    else:
        yield "the hub knows no edge node"
    yield from paragraph([*conflicts(nodes), *distrusted(nodes), *last_errors(nodes), *refusals(state.hub.refused)])


def run(settings: OperatorSettings, *, as_json: bool) -> None:
    state = ask_state(settings.hub, timeout_s=settings.timeout_s)
    if not state.hub.leads:
        raise BridgeError(f"only the hub that leads knows the nodes: {standby(state.hub)}")
    answer(show(state), state_as_json(state, "nodes", "refused"), as_json=as_json)


def _row(node: NodeStatus) -> tuple[str, ...]:
    call = node.oldest_call
    return (
        node.node,
        state_of(node),
        shown(node.since),
        str(node.calls) + (f" ({call.method.rpartition('/')[2]} {call.driver} {age(call.age_s)})" if call else ""),
        node.address or "-",
        ", ".join(f"{it} (serves)" if it in node.serves else it for it in sorted(node.drivers)) or "-",
    )
