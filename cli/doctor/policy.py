"""The policy of a hub: checks its file, and names rules and peers that do not fit each other."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from cli.doctor.finding import Finding, listed, ok, warning, wrong
from cloud.trust.policy import Policy, Rule
from cloud.trust.policy_text import MOST_BYTES, read_policy
from common.pages.hub import DeniedProxy, NodeStatus
from common.pages.json_form import shown


def check_policy(path: Path | None, nodes: Sequence[NodeStatus], denied: Sequence[DeniedProxy]) -> Iterator[Finding]:
    """Whether the policy can be used, and whether it fits the nodes and proxy drivers that the hub knows.

    Args:
        path: the hub's `--policy`; None without one.
        nodes: every node that the hub knows.
        denied: the proxy drivers whose calls the policy forbids.
    """
    if path is None:
        yield ok("the hub runs without --policy: each node may report every driver")
        return
    try:
        with path.open("rb") as file:
            policy = read_policy(file.read(MOST_BYTES + 1), source=str(path))
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        do = "correct the file; until then the hub uses the last good one, and restarts with that"
        yield wrong(f"the policy {path} cannot be used: {why}", do)
        return
    yield ok(f"the policy {path} can be used ({policy.summary()})")
    if idle := [rule for rule in policy.nodes or () if not any(rule.names.match(node.node) for node in nodes)]:
        do = "correct the names if they are misspelt; ignore this if these nodes come later"
        yield warning(f"these lines of the policy are for no node that the hub knows: {_lines(idle)}", do)
    yield from _refused_drivers(policy, nodes)
    for one in denied:
        who = f"proxy driver {one.identity} from {one.address}"
        do = "if it should, add it to a rule of proxies; if not, find out who has its key (docs/recovery.md)"
        yield wrong(f"{who} may not call driver {one.driver}, and tried at {shown(one.at)}: {one.why}", do)


def _refused_drivers(policy: Policy, nodes: Sequence[NodeStatus]) -> Iterator[Finding]:
    """The drivers that nodes have reported, and that no rule allows them, whatever the topology."""
    found = [
        f"{driver} of {node.node}"
        for node in nodes
        for driver in node.drivers
        if not policy.allows_report(node.node, driver, {}).allowed
    ]
    if found:
        do = "csi-bridge policy NODE says why; add a rule, or stop the driver and run csi-bridge forget NODE DRIVER"
        yield warning(f"the policy allows no report of {listed(found)}", do)


def _lines(rules: Sequence[Rule]) -> str:
    return listed([f"line {rule.line} ({rule.names})" for rule in rules])
