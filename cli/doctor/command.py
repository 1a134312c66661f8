"""The command: finds the parts of CSI Bridge on this host, checks each, and prints the findings."""

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cli.doctor import agent, cluster, csi_probe, hub, permissions, proxy
from cli.doctor.finding import Finding, Level, Result, wrong
from cli.process_options import DRIVER_OPTIONS, EDGE_OPTIONS, HUB_OPTIONS
from cli.table import printable, say
from common.endpoint import Endpoint
from common.errors import BridgeError

Report = Mapping[str, Sequence[Result]]
"""The results of the checks, by process."""

_USUAL_HUB: Path = HUB_OPTIONS.default("uds")
_USUAL_DRIVER: Path = DRIVER_OPTIONS.default("endpoint")
_USUAL_AGENT: Path = EDGE_OPTIONS.default("status")


@dataclass(frozen=True, kw_only=True)
class Question:
    """The flags of the command."""

    hub: Endpoint | None
    endpoint: tuple[Path, ...]
    status: Path | None
    kubeconfig: str | None
    output: str
    timeout_s: float


async def examine(question: Question) -> Report:
    """Check all parts that are here or that the operator named."""
    found: dict[str, list[Result]] = {}
    limit_s = question.timeout_s
    state = None
    if (at := _hub(question)) is not None:
        found[f"hub at {at}"], state = await hub.examine(at, limit_s=limit_s)
    told = state.hub.settings.get("kubeconfig", [None])[0] if state is not None else None
    sockets = question.endpoint or _there(_USUAL_DRIVER)
    if kubeconfig := question.kubeconfig or told:
        as_hub = kubeconfig == told
        nodes = state.nodes if state is not None else []
        drivers = {it.driver: it.placement for it in state.hub.drivers} if state is not None else await _served(sockets)
        found[f"Kubernetes by {kubeconfig}"] = await cluster.examine(
            kubeconfig, nodes, drivers, as_hub=as_hub, limit_s=limit_s
        )
    for socket in sockets:
        found[f"proxy driver at {socket}"] = await proxy.examine(socket, limit_s=limit_s)
    if sockets:
        found["sidecars beside the proxy driver"] = await permissions.examine(limit_s=limit_s)
    for socket in [question.status] if question.status is not None else _there(_USUAL_AGENT):
        found[f"edge agent at {socket}"] = await agent.examine(socket, limit_s=limit_s)
    return found or {"this host": [Result("processes", check_nothing(agent.service_log()))]}


def show(report: Report) -> Iterator[str]:
    """The report as lines for people."""
    for at, results in report.items():
        yield f"{at}:"
        for result in results:
            finding = result.finding
            yield printable(f"  {finding.level:<7}  {result.name}: {finding.what}")
            if finding.do:
                yield printable(f"  {'':<7}  -> {finding.do}")
        yield ""
    counts = _counts(report)
    yield ", ".join(f"{counts[level]} {level}" for level in (Level.WRONG, Level.WARNING, Level.OK))


def as_json(report: Report) -> str:
    """The report for programs."""
    findings = [
        {"at": at, "check": result.name, "level": result.finding.level, "what": result.finding.what}
        | {"do": result.finding.do}
        for at, results in report.items()
        for result in results
    ]
    counts = _counts(report)
    return json.dumps({"findings": findings, **{level: counts[level] for level in Level}}, indent=2)


def run(question: Question) -> int:
    """Run the checks and print the report. Returns 1 if a finding is wrong, else 0."""
    report = asyncio.run(examine(question))
    if question.output == "json":
        say(as_json(report))
    else:
        for line in show(report):
            say(line)
    return 1 if _counts(report)[Level.WRONG] else 0


def _counts(report: Report) -> Counter[Level]:
    return Counter(result.finding.level for results in report.values() for result in results)


def _hub(question: Question) -> Endpoint | None:
    """The hub's endpoint: the named one, or the usual socket if it exists."""
    if question.hub is not None:
        return question.hub
    return next((Endpoint(f"unix://{path}", path=path) for path in _there(_USUAL_HUB)), None)


async def _served(sockets: Sequence[Path]) -> dict[str, str]:
    """The proxy drivers at these sockets, if there is no hub that knows them."""
    found = {}
    for socket in sockets:
        with contextlib.suppress(BridgeError):  # the proxy driver's own checks report it
            found[(await csi_probe.identify(socket)).name] = ""
    return found


def _there(usual: Path | None) -> list[Path]:
    """The usual path of a socket, if it exists."""
    try:
        return [usual] if usual is not None and usual.exists() else []
    except OSError:  # the directory is closed to this user, so some process uses it
        return [usual] if usual is not None else []


def check_nothing(log: str) -> Finding:
    """The finding if there is no process of CSI Bridge.

    Args:
        log: the command that shows the log of the agent's unit; empty if no such unit is installed.
    """
    places = ", ".join(str(path) for path in (_USUAL_HUB, _USUAL_DRIVER, _USUAL_AGENT))
    do = (
        "start the process that should run on this host, and look at its log; if its socket is elsewhere, name it by "
        "--hub, --endpoint or --status"
    )
    if log:
        do = f"the agent's unit {agent.UNIT}.service is installed here: read in {log} why it does not run; else {do}"
    return wrong(f"nothing of CSI Bridge was found here ({places})", do)
