"""The checks of an edge agent: its link, its certificate, its directories, its drivers and its volumes."""

import asyncio
import time
from pathlib import Path

from cli.doctor import csi_probe
from cli.doctor.certificates import check_certificate
from cli.doctor.disk import check_directory, check_state
from cli.doctor.finding import Finding, Level, Result, attempt, ok, warning, wrong
from cli.doctor.sockets import check_socket
from cli.doctor.watchdog import check_watchdog
from cli.edge_volumes import ask, ask_agent, missing, named
from cli.process_options import EDGE_OPTIONS
from cloud.trust.admission import Role
from common.errors import BridgeError
from common.pages.agent import AgentStatus, NodeVolumes
from common.pages.json_form import shown
from common.wording import first_names
from edge.settings import AgentSettings, complete

_LOG = "look at the agent's log (journalctl -u csi-bridge-edge, or kubectl logs)"
_SEE_DRIVER = "see that the driver runs, and look at its log"
_NO_DRIVER = warning(
    "this node has no CSI driver; claims for it fail, some with 'no topology key found'",
    "start the vendor's driver and its node-driver-registrar, or name its socket by the agent's --driver",
)

# The advice for a certificate from the join.
_RENEWS = (
    "the agent renews it by itself when the hub answers; if it has a problem with that, as shown here, join the node "
    "again: csi-bridge edge join, with a token for this node"
)


async def examine(status: Path, *, limit_s: float) -> list[Result]:
    first = check_socket(status, start=f"csi-bridge edge run, with --status unix://{status}")
    if first.level is Level.WRONG:
        return [("socket", first._replace(do=f"{first.do}; {_LOG}"))]
    try:
        state = await asyncio.to_thread(ask_agent, status, "/status", AgentStatus, timeout_s=limit_s)
        volumes = await asyncio.to_thread(ask, status, timeout_s=limit_s)
        settings = complete(EDGE_OPTIONS.read(state.settings))
    except BridgeError as error:
        return [("socket", first), ("agent", wrong(str(error), _LOG))]
    own = settings.registration == "own"
    fences = settings.fence == "on"
    return [
        ("socket", first),
        ("link", check_link(state)),
        *_certificate_checks(settings),
        ("state directory", check_state(settings.state_dir)),
        *([await attempt("watchdog", asyncio.to_thread(check_watchdog), _LOG, limit_s=limit_s)] if fences else []),
        *([("root directory", check_directory(settings.root_dir, flag="--root-dir"))] if own else ()),
        *[
            await attempt("driver", _check_driver(Path(it.socket), it.trouble), _SEE_DRIVER, limit_s=limit_s)
            for it in state.drivers
        ],
        *([] if state.drivers else [("drivers", _NO_DRIVER)]),
        *(("problem", warning(text, _LOG)) for text in state.problems),
        *([("volumes", check_volumes(volumes))] if own else ()),
    ]


def check_link(state: AgentStatus) -> Finding:
    others = "; ".join(f"{hub.address}: {hub.why}" for hub in state.hubs if hub.why)
    do = (
        "see the check of the certificate; compare --hub with the hub's --listen, and see that packets reach it; on "
        "the hub's host, csi-bridge nodes shows the peers that the hub refused, and why"
    )
    if "the proxy http://" in others:
        do = "the hub has not heard of this node; curl -x PROXY https://HUB:PORT tries the proxy by hand"
    if not state.connected:
        return wrong(f"node {state.node} has no link to the hub since {shown(state.since)}: {others}", do)
    used = ", ".join(f"{hub.address} (epoch {hub.epoch})" for hub in state.hubs if not hub.why)
    what = f"node {state.node} is connected to {used} since {shown(state.since)}"
    if any(hub.why and not hub.software for hub in state.hubs):
        return warning(f"{what}, and not to {others}", do)
    return ok(f"{what}; {others}" if others else what)


def _certificate_checks(settings: AgentSettings) -> list[Result]:
    files = settings.tls_files()
    if files is None:
        return []
    found = check_certificate(files, now=time.time(), name=settings.node, role=Role.EDGE)
    renews = settings.is_joined and found.level is not Level.OK
    return [("certificate", found._replace(do=_RENEWS) if renews else found)]


async def _check_driver(path: Path, trouble: str) -> Finding:
    said, is_ready = await csi_probe.identify(path)
    who = f"driver {said.name} {said.vendor_version} at {path}"
    if not is_ready:
        return warning(f"{who} says that it is not ready", _SEE_DRIVER)
    if trouble:
        return wrong(f"{who} answers, but not every required call: {trouble}", _SEE_DRIVER)
    return ok(f"{who} answers")


def check_volumes(volumes: NodeVolumes) -> Finding:
    failing = [f"{named(it)}: {it.error}" for it in volumes.volumes if it.error]
    if faults := [*failing, *missing(volumes, None)]:
        return warning(
            f"not every volume of this node is published: {first_names(faults, 3)}",
            "see csi-bridge edge volumes, and the driver's log; on the hub's host, csi-bridge status",
        )
    return ok(f"the node knows its pods, and all {len(volumes.volumes)} volumes are published")
