"""The checks of a hub: its state, its nodes and proxy drivers, its directory and its listener."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence

from cli.doctor.certificates import check_certificate
from cli.doctor.disk import check_secret_file, check_state
from cli.doctor.elections import check_election
from cli.doctor.finding import HUBS_ROLES, Check, Finding, Level, Result, known, listed, ok, perform, warning, wrong
from cli.doctor.sockets import check_socket
from cli.hub_state import HubState, ask_state
from cli.node_list import unreported
from cli.process_options import HUB_OPTIONS
from cloud.hub_settings import HubSettings
from common.endpoint import Endpoint
from common.errors import BridgeError
from common.pages.hub import HubStatus, NodeStatus, Refusal
from common.pages.json_form import shown
from common.parsers import HostPort
from common.tls import TlsFiles
from common.uplink import LONGEST_REDIAL_S
from common.version import SOFTWARE

_LOG = "look at the hub's log"

_RECENT_S = 3 * LONGEST_REDIAL_S
"""A refused peer dials again after 30 s at most. If it has not come for this long, it was repaired or stopped."""

_MOST_PROBLEMS = 20

_READS = ("Kubernetes: list ", "Kubernetes: watch ")
"""The beginning of a problem with a kind that the API server does not list. The hub lists only kinds that it needs."""

_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  # tries a listener on all interfaces at loopback


async def examine(hub: Endpoint, *, limit_s: float) -> tuple[list[Result], HubState | None]:
    """Check the hub at this UNIX socket. Returns the results and the hub's state, None if it gave none."""
    assert hub.path is not None
    first = check_socket(hub.path, start=f"csi-bridge hub, with --uds=unix://{hub.path}", private=True)
    results = [Result("socket", first)]
    if first.level is Level.WRONG:
        return results, None
    try:
        state = await asyncio.to_thread(ask_state, hub, timeout_s=limit_s)
        settings = HUB_OPTIONS.read(state.hub.settings)
    except BridgeError as error:
        return [*results, Result("hub", wrong(str(error), _LOG))], None
    checks = [
        *checks_of(state, now=time.time()),
        *_surroundings(settings),
    ]
    return results + await perform(checks, limit_s=limit_s), state


def checks_of(state: HubState, *, now: float) -> list[Check]:
    """The checks that need only the hub's state."""
    return [
        known("version", check_versions(state)),
        *(known("knowledge", finding) for finding in check_knowledge(state)),
        known("nodes", check_nodes(state.nodes)),
        *(known("nodes", finding) for finding in check_idle(state.nodes)),
        *(known("nodes", finding) for finding in check_unreported(state.nodes)),
        *(known("conflict", wrong(node.conflict, _SEPARATE)) for node in state.nodes if node.conflict),
        *(known("expiry", finding) for finding in check_expiry(state.hub)),
        *(known("reports", finding) for finding in check_reports(state.nodes)),
        *(known("refused", finding) for finding in check_refused(state.hub.refused, now)),
        *(known("driver", finding) for finding in check_drivers(state)),
        *(known("election", finding) for it in state.hub.elections for finding in check_election(it, now=now)),
    ]


_SEPARATE = "give each machine a --node and a --state-dir of its own, and never copy one"


def check_versions(state: HubState) -> Finding:
    """Whether all connected peers have the hub's version."""
    hubs = state.hub.software
    if hubs != SOFTWARE:
        return warning(f"the hub is {hubs}, and {SOFTWARE} is installed here", "restart the hub")
    others = defaultdict(list)
    peers = [(node.node, node.software) for node in state.nodes]
    for name, software in [*peers, *((proxy.driver, proxy.software) for proxy in state.hub.drivers)]:
        if software and software != hubs:
            others[software].append(name)
    if others:
        found = "; ".join(f"{software} at {listed(names)}" for software, names in sorted(others.items()))
        do = "they work together; bring all to one version when you can"
        return warning(f"the hub is {hubs}, and there is {found}", do)
    return ok(f"the hub and all connected peers are {hubs}")


def check_knowledge(state: HubState) -> Iterator[Finding]:
    """The hub's losses, its trouble with the disk and its problems."""
    for loss in state.hub.lost:
        do = "wait until csi-bridge status shows every node and its drivers, then run csi-bridge trust"
        yield wrong(f"calls that name no node are refused, because the hub has lost records: {loss}", do)
    if state.hub.trouble:
        yield wrong(f"the hub cannot write its records: {state.hub.trouble}", "make room on the disk of --state-dir")
    for problem in state.hub.problems[:_MOST_PROBLEMS]:
        if problem.startswith(_READS) and " is forbidden: " in problem:
            yield wrong(problem, HUBS_ROLES)
        else:
            yield warning(problem, "correct what the message names; docs/troubleshooting.md has it")
    if (more := len(state.hub.problems) - _MOST_PROBLEMS) > 0:
        yield warning(f"there are {more} more problems", "see csi-bridge status")


def check_nodes(nodes: Sequence[NodeStatus]) -> Finding:
    """Whether every known node is connected."""
    if not nodes:
        do = "start csi-bridge edge run on a node, with --hub naming this hub's --listen; run csi-bridge doctor there"
        return warning("no edge node has ever connected to this hub", do)
    away = [f"{node.node} since {shown(node.since)}" for node in nodes if not node.connected]
    if not away:
        return ok(f"{len(nodes)} of {len(nodes)} nodes are connected")
    return warning(
        f"{len(away)} of {len(nodes)} nodes are offline: {listed(away)}",
        "look at the network to them, and at the logs of their agents; run csi-bridge doctor there; csi-bridge forget "
        "those that are gone for good",
    )


def check_idle(nodes: Sequence[NodeStatus]) -> Iterator[Finding]:
    """A warning about connected nodes without a driver."""
    if idle := [node.node for node in nodes if node.connected and not node.drivers]:
        yield warning(
            f"these nodes are connected and run no CSI driver: {listed(idle)}; claims for them cannot be served",
            "see that the vendor's driver and its node-driver-registrar run there, or name the driver's socket by the "
            "agent's --driver; run csi-bridge doctor there",
        )


def check_unreported(nodes: Sequence[NodeStatus]) -> Iterator[Finding]:
    """Warnings about drivers that connected nodes no longer report."""
    yield from (warning(what, do) for what, do in unreported(nodes))


def check_reports(nodes: Sequence[NodeStatus]) -> Iterator[Finding]:
    """The nodes' reports that the hub refuses, and the nodes whose drivers can do less than those of most nodes."""
    for node in nodes:
        for driver, why in node.refused.items():
            yield wrong(f"edge node {node.node} gets no call of driver {driver}: {why}", _LOG)
        for driver, missing in node.lacking.items():
            what = f"driver {driver} on edge node {node.node} lacks {listed(missing)}, which it has on most nodes"
            yield warning(what, "run the same version of the driver on all nodes")
        for problem in node.problems:
            yield warning(problem, _LOG)


def check_refused(refused: Sequence[Refusal], now: float) -> Iterator[Finding]:
    """The peers that the hub refuses now."""
    for one in refused:
        if now - one.at.timestamp() < _RECENT_S:
            who = f"{one.role} {one.name} from {one.address}"
            yield wrong(f"{who} was refused at {shown(one.at)}: {one.why}", "correct there what the message names")


def check_expiry(hub: HubStatus) -> Iterator[Finding]:
    """The certificates of the hub and of its connected peers that end soon."""
    for sentence in hub.ending:
        what, _, do = sentence.partition("; ")
        yield warning(what, do)


def check_drivers(state: HubState) -> Iterator[Finding]:
    """Whether every driver has its proxy driver, and every proxy driver its driver."""
    nodes: dict[str, list[NodeStatus]] = defaultdict(list)
    for node in state.nodes:
        for driver in node.drivers:
            nodes[driver].append(node)
    proxies = {proxy.driver for proxy in state.hub.drivers}
    for driver in sorted(nodes.keys() | proxies):
        yield _check_driver(driver, nodes.get(driver, []), has_proxy=driver in proxies)


def _check_driver(driver: str, nodes: Sequence[NodeStatus], *, has_proxy: bool) -> Finding:
    if not nodes:
        do = "compare --drivername with the name that the vendor's driver gives; see that it runs, on a connected node"
        return wrong(f"proxy driver {driver} is connected, and no edge node has reported such a driver", do)
    where = listed(sorted(node.node for node in nodes))
    if not has_proxy:
        do = f"start csi-bridge driver --drivername={driver} beside its sidecars; look at its log if it runs"
        return warning(f"driver {driver} runs on {where}, and no proxy driver of that name is connected", do)
    versions = sorted({node.versions.get(driver, "") for node in nodes})
    if len(versions) > 1:
        do = "bring all nodes to one version: what the nodes' drivers can do may differ"
        return warning(f"driver {driver} runs in several versions: {listed(versions)}", do)
    if not any(node.connected for node in nodes):
        return wrong(f"driver {driver} runs on {where}, of which none is connected", "see the check of the nodes")
    return ok(f"driver {driver} {versions[0]} runs on {where}, and its proxy driver is connected")


def _surroundings(settings: HubSettings) -> list[Check]:
    """The checks of the hub's directory, listener and certificate, from its flags."""
    state_dir, listen = settings.state_dir, settings.listen
    checks = [Check("state directory", lambda: asyncio.to_thread(check_state, state_dir))]
    ca_key = settings.ca_key
    if ca_key is not None:
        checks.append(Check("signing key", lambda: asyncio.to_thread(check_secret_file, ca_key, flag="--ca-key")))
    if listen is None:
        without = warning("without --listen no edge agent can connect", "start the hub with --listen")
        return [*checks, known("listen", without)]
    checks.append(Check("listen", lambda: _check_listen(listen)))
    if settings.tls_ca is not None and settings.tls_cert is not None and settings.tls_key is not None:
        files = TlsFiles(settings.tls_ca, settings.tls_cert, settings.tls_key)

        async def certificate() -> Finding:
            return check_certificate(files, server=True, now=time.time())

        checks.append(Check("certificate", certificate))
    return checks


async def _check_listen(listen: HostPort) -> Finding:
    host = _ANY_ADDRESS.get(listen.host, listen.host)
    try:
        _, writer = await asyncio.open_connection(host, listen.port)
    except OSError as error:
        return wrong(f"nobody answers at --listen={listen}: {error.strerror or error}", _LOG)
    writer.close()
    return ok(f"the hub listens on {listen}")
