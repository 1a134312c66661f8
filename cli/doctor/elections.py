"""The checks of an election: whether a node serves a driver with `--placement=shared`, and another one could."""

from collections.abc import Iterator
from typing import Final

from cli.doctor.finding import Finding, listed, ok, warning, wrong
from common.pages.hub import ElectionStatus

_LONG_LEASE_S: Final = 600
"""An open create waits for the lease of its node's agent, and external-provisioner's longest pause is 5 minutes."""

_AHEAD_S: Final = 60
"""An epoch is the time of its election. Clocks that NTP follows are closer than this."""

_PAGE: Final = "docs/storage.md has the section 'Storage that every node reaches'"


def check_election(it: ElectionStatus, *, now: float) -> Iterator[Finding]:
    """The findings about the election of one driver, at a time in seconds since the epoch."""
    yield _check_serving(it)
    if it.unmatched:
        yield warning(
            f"no node that runs driver {it.driver} fits {listed(it.unmatched)} of --candidates or --prefer",
            "compare with csi-bridge nodes; for a label, with kubectl get nodes --show-labels",
        )
    if it.lease_s > _LONG_LEASE_S:
        yield warning(
            f"the agent of edge node {it.node} has a controller lease of {it.lease_s} s: if the node is away, its open "
            f"creates of driver {it.driver} block their claims for so long",
            "start the agent with a shorter --controller-lease (default 60 s)",
        )
    if it.epoch > now + _AHEAD_S:
        yield warning(
            f"the election of driver {it.driver} has epoch {it.epoch}, which is {it.epoch - int(now)} s ahead of the "
            f"hub's clock: the clock was set back; if placement.db is lost now, agents refuse the hub's calls",
            "let NTP set the clock of the hub's machine",
        )


def _check_serving(it: ElectionStatus) -> Finding:
    if not it.node:
        what = f"no node serves driver {it.driver}: {it.trouble}"
        return wrong(what, f"let one of these nodes serve, or change the hub's --candidates; {_PAGE}")
    if it.trouble:
        what = f"edge node {it.node} is elected to serve driver {it.driver}, and {it.trouble}"
        if it.standby:
            do = f"wait --takeover-after: then {listed(it.standby)} can take over"
            return warning(f"{what}; calls wait", do)
        return wrong(f"{what}; no other node can take over{_reasons(it)}", f"bring one of them back; {_PAGE}")
    if it.standby:
        return ok(f"edge node {it.node} serves driver {it.driver}, and {listed(it.standby)} can take over")
    what = f"edge node {it.node} serves driver {it.driver}, and no other node can take over{_reasons(it)}"
    return warning(what, f"run the driver with its controller, and a new agent, on another node; {_PAGE}")


def _reasons(it: ElectionStatus) -> str:
    """The other nodes' reasons, as the end of a sentence."""
    told = [f"edge node {node} {why}" for node, why in it.unfit.items()]
    return f": {'; '.join(told)}" if told else ""
