"""The command: finds the parts of CSI Bridge on this host, checks each, and prints the findings."""

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from cli.doctor import agent, cluster, permissions, proxy
from cli.doctor import hub as of_hub
from cli.doctor.finding import Level, Result, wrong
from cli.operators.table import answer, printable
from cli.process_options import DRIVER_OPTIONS, EDGE_OPTIONS, HUB_OPTIONS
from common.net.endpoint import Endpoint

Report = Mapping[str, Sequence[Result]]  # the results of the checks, by process

_USUAL_HUB: Path = HUB_OPTIONS.default("uds")
_USUAL_DRIVER: Path = DRIVER_OPTIONS.default("endpoint")
_USUAL_AGENT: Path = EDGE_OPTIONS.default("status")


_NOTHING = wrong(
    f"nothing of CSI Bridge was found here ({_USUAL_HUB}, {_USUAL_DRIVER}, {_USUAL_AGENT})",
    "start the process that should run on this host, and look at its log (on an edge node journalctl -u "
    "csi-bridge-edge); if its socket is elsewhere, name it by --hub, --endpoint or --status",
)


async def examine(
    hub: Endpoint | None, endpoint: tuple[Path, ...], status: Path | None, kubeconfig: str | None, *, limit_s: float
) -> Report:
    found: dict[str, list[Result]] = {}
    state = None
    usual = [Endpoint(f"unix://{path}", path=path) for path in _there(_USUAL_HUB)]
    for at in [hub] if hub is not None else usual:
        found[f"hub at {at}"], state = await of_hub.examine(at, limit_s=limit_s)
    settings = state.hub.settings if state is not None else {}
    told = settings.get("kubeconfig", [None])[0]
    sockets = endpoint or _there(_USUAL_DRIVER)
    if kubeconfig := kubeconfig or told:
        as_hub = kubeconfig == told
        nodes = state.nodes if state is not None else []
        drivers = {it.driver: it.placement for it in state.hub.drivers} if state is not None else {}
        found[f"Kubernetes by {kubeconfig}"] = await cluster.examine(
            kubeconfig,
            nodes,
            drivers,
            as_hub=as_hub,
            limit_s=limit_s,
            lease_in=settings.get("leader_election_namespace", [None])[0],
        )
    for socket in sockets:
        found[f"proxy driver at {socket}"] = await proxy.examine(socket, limit_s=limit_s)
    if sockets:
        found["sidecars beside the proxy driver"] = await permissions.examine(limit_s=limit_s)
    for socket in [status] if status is not None else _there(_USUAL_AGENT):
        found[f"edge agent at {socket}"] = await agent.examine(socket, limit_s=limit_s)
    return found or {"this host": [("processes", _NOTHING)]}


def show(report: Report) -> Iterator[str]:
    for at, results in report.items():
        yield f"{at}:"
        for name, finding in results:
            yield printable(f"  {finding.level:<7}  {name}: {finding.what}")
            if finding.do:
                yield printable(f"  {'':<7}  -> {finding.do}")
        yield ""
    counts = _counts(report)
    yield ", ".join(f"{counts[level]} {level}" for level in (Level.WRONG, Level.WARNING, Level.OK))


def in_json(report: Report) -> dict[str, object]:
    findings = [
        {"at": at, "check": name, "level": finding.level, "what": finding.what, "do": finding.do}
        for at, results in report.items()
        for name, finding in results
    ]
    counts = _counts(report)
    return {"findings": findings, **{level: counts[level] for level in Level}}


def run(
    hub: Endpoint | None,
    endpoint: tuple[Path, ...],
    status: Path | None,
    kubeconfig: str | None,
    *,
    timeout_s: float,
    as_json: bool,
) -> int:
    report = asyncio.run(examine(hub, endpoint, status, kubeconfig, limit_s=timeout_s))
    answer(show(report), in_json(report), as_json=as_json)
    return 1 if _counts(report)[Level.WRONG] else 0


def _counts(report: Report) -> Counter[Level]:
    return Counter(finding.level for results in report.values() for _, finding in results)


def _there(usual: Path) -> list[Path]:
    try:
        return [usual] if usual.exists() else []
    except OSError:  # the directory is closed to this user, so some process uses it
        return [usual]
