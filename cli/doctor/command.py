"""The command: finds the parts of CSI Bridge on this host, checks each, and prints the findings."""

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from cli.doctor import agent, cluster, csi_probe, hub, permissions, proxy
from cli.doctor.finding import Finding, Level, Result, wrong
from cli.doctor_settings import DoctorSettings
from cli.table import printable
from cloud.driver_settings import DriverSettings
from cloud.hub_settings import HubSettings
from common.endpoint import Endpoint
from common.errors import BridgeError
from edge.settings import AgentSettings

Report = Mapping[str, Sequence[Result]]
"""The results of the checks, by process."""

State = dict[str, Any]


async def examine(settings: DoctorSettings) -> Report:
    """Check all parts that are here or that the operator named."""
    found: dict[str, list[Result]] = {}
    limit_s = settings.timeout_s
    state = None
    if (at := _hub(settings)) is not None:
        found[f"hub at {at}"], state = await hub.examine(at, limit_s=limit_s)
    told = state["settings"].get("kubeconfig", [None])[0] if state is not None else None
    sockets = settings.endpoint or _there(DriverSettings.endpoint)
    if kubeconfig := settings.kubeconfig or told:
        as_hub = kubeconfig == told
        nodes, drivers = (state["nodes"], state["drivers"]) if state is not None else ([], await _served(sockets))
        found[f"Kubernetes by {kubeconfig}"] = await cluster.examine(
            kubeconfig, nodes, drivers, as_hub=as_hub, limit_s=limit_s
        )
    for socket in sockets:
        found[f"proxy driver at {socket}"] = await proxy.examine(socket, limit_s=limit_s)
    if sockets:
        found["sidecars beside the proxy driver"] = await permissions.examine(limit_s=limit_s)
    for socket in [settings.status] if settings.status is not None else _there(AgentSettings.status):
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


def run(settings: DoctorSettings) -> int:
    """Run the checks and print the report. Returns 1 if a finding is wrong, else 0."""
    report = asyncio.run(examine(settings))
    if settings.output == "json":
        click.echo(as_json(report))
    else:
        for line in show(report):
            click.echo(line)
    return 1 if _counts(report)[Level.WRONG] else 0


def _counts(report: Report) -> Counter[Level]:
    return Counter(result.finding.level for results in report.values() for result in results)


def _hub(settings: DoctorSettings) -> Endpoint | None:
    """The hub's endpoint: the named one, or the usual socket if it exists."""
    if settings.hub is not None:
        return settings.hub
    return next((Endpoint(f"unix://{path}", path=path) for path in _there(HubSettings.uds)), None)


async def _served(sockets: Sequence[Path]) -> list[State]:
    """The proxy drivers at these sockets, if there is no hub that knows them."""
    found: list[State] = []
    for socket in sockets:
        with contextlib.suppress(BridgeError):  # the proxy driver's own checks report it
            found.append({"driver": (await csi_probe.identify(socket)).name})
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
    places = ", ".join(str(path) for path in (HubSettings.uds, DriverSettings.endpoint, AgentSettings.status))
    do = (
        "start the process that should run on this host, and look at its log; if its socket is elsewhere, name it by "
        "--hub, --endpoint or --status"
    )
    if log:
        do = f"the agent's unit {agent.UNIT}.service is installed here: read in {log} why it does not run; else {do}"
    return wrong(f"nothing of CSI Bridge was found here ({places})", do)
