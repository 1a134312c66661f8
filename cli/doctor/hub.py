"""The checks of a hub: its state, its nodes and proxy drivers, its directory and its certificate."""

import asyncio
import time
from collections.abc import Iterator, Sequence

from cli.doctor.certificates import check_certificate
from cli.doctor.disk import check_state
from cli.doctor.finding import Finding, Level, Result, ok, warning, wrong
from cli.doctor.sockets import check_socket
from cli.operators import status
from cli.operators.hub_state import HubState, ask_state, standby
from cli.operators.node_list import refusals
from cli.process_options import HUB_OPTIONS
from cloud.hub_settings import HubSettings
from common.errors import BridgeError
from common.net.endpoint import Endpoint
from common.objects.offline_policy import ANNOTATION
from common.observe.version import SOFTWARE
from common.pages.hub import HubStatus, NodeStatus
from common.pages.json_form import shown
from common.wording import first_names

_LOG = "look at the hub's log"

# The beginnings of the problems of `csi-bridge status` that keep calls from nodes.
_HARM = ("CONFLICT", "LOST", "NOT WRITTEN", "REFUSED")

# Words of a problem, and the place that has more about it. The first pair counts whose words the problem has.
READ = (
    ("CONFLICT", "docs/troubleshooting.md#two-machines-use-one-node-name"),
    ("LOST", "docs/troubleshooting.md#the-hub-has-lost-records"),
    ("NOT WRITTEN", "docs/troubleshooting.md#the-disk-is-full"),
    ("EXPIRES", "docs/troubleshooting.md#a-certificate-has-expired-or-does-not-fit"),
    ("REFUSED: edge node", "docs/troubleshooting.md#the-hub-refuses-a-nodes-report"),
    ("REFUSED", "docs/troubleshooting.md#an-edge-node-is-offline"),
    ("a replaced certificate", "docs/troubleshooting.md#a-copy-of-a-nodes-keys-appears"),
    ("another machine has joined", "docs/recovery.md#a-new-machine-under-the-old-name"),
    (" fenced ", "docs/recovery.md#a-node-is-away-and-its-volume-shall-go-to-another-node"),
    (" is not detached ", "docs/troubleshooting.md#a-volumeattachment-has-attacherror"),
    (f" {ANNOTATION}", "docs/troubleshooting.md#a-volume-is-not-fenced"),
    (" serves driver ", "docs/recovery.md#the-serving-node-of-a-shared-driver"),
    (" can serve driver ", "docs/recovery.md#the-serving-node-of-a-shared-driver"),
    (" answered ", "docs/troubleshooting.md#the-hub-refuses-a-nodes-report"),
    ("the hub cannot store ", "docs/troubleshooting.md#the-disk-is-full"),
    ("the hub stores no more ", "docs/troubleshooting.md#the-disk-is-full"),
    ("its last good state counts", "docs/troubleshooting.md#a-sidecar-or-the-hub-logs-an-error-of-the-api-server"),
    ("every manifest is good", "docs/troubleshooting.md#a-manifest-is-not-followed"),
    (".yaml", "docs/troubleshooting.md#a-manifest-is-not-followed"),
    ("", "docs/troubleshooting.md#where-to-look-first"),
)


async def examine(hub: Endpoint, *, limit_s: float) -> tuple[list[Result], HubState | None]:
    """Check the hub at this UNIX socket. Returns the results and the hub's state, None if it gave none."""
    assert hub.path is not None
    first = check_socket(hub.path, start=f"csi-bridge hub, with --uds=unix://{hub.path}")
    if first.level is Level.WRONG:
        return [("socket", first)], None
    try:
        state = await asyncio.to_thread(ask_state, hub, timeout_s=limit_s)
        settings = HUB_OPTIONS.read(state.hub.settings)
    except BridgeError as error:
        return [("socket", first), ("hub", wrong(str(error), _LOG))], None
    return [("socket", first), *checks_of(state), *surroundings(settings)], state


def checks_of(state: HubState) -> list[Result]:
    of_leader = [
        ("nodes", _check_nodes(state.nodes)),
        *(("driver", _check_driver(driver, state)) for driver in sorted(_drivers(state))),
    ]
    return [
        ("version", _check_versions(state)),
        *(of_leader if state.hub.leads else [("leader", _check_standby(state.hub))]),
        *(("problem", finding) for finding in _check_problems(state)),
    ]


def _check_standby(hub: HubStatus) -> Finding:
    line = standby(hub)
    if not hub.leader:
        return wrong(line, f"the hub leads once it has the Lease, within half a minute; else {_LOG}")
    # each driver of --serve has a link to this hub from within the hub's process
    if hub.links <= len(hub.settings.get("serve", ())):
        do = "name this hub, too, by --hub and --hub-endpoint of nodes and proxy drivers: docs/install.md#two-hubs"
        return warning(f"{line}; at a takeover all nodes and proxy drivers dial anew", do)
    return ok(line)


def _check_versions(state: HubState) -> Finding:
    hubs = state.hub.software
    if hubs != SOFTWARE:
        return warning(f"the hub is {hubs}, and {SOFTWARE} is installed here", "restart the hub")
    peers = [(node.node, node.software) for node in state.nodes]
    peers += [(proxy.driver, proxy.software) for proxy in state.hub.drivers]
    if others := [f"{name} is {software}" for name, software in peers if software not in {"", hubs}]:
        do = "they work together; bring all to one version when you can"
        return warning(f"the hub is {hubs}, and {first_names(others)}", do)
    return ok(f"the hub and all connected peers are {hubs}")


def _check_nodes(nodes: Sequence[NodeStatus]) -> Finding:
    if not nodes:
        do = "start csi-bridge edge run on a node, with --hub naming this hub's --listen; run csi-bridge doctor there"
        return warning("no edge node has ever connected to this hub", do)
    if away := [f"{node.node} since {shown(node.since)}" for node in nodes if not node.connected]:
        return warning(
            f"{len(away)} of {len(nodes)} nodes are offline: {first_names(away)}",
            "look at the network to them, and at the logs of their agents; run csi-bridge doctor there; csi-bridge "
            "forget those that are gone for good",
        )
    if idle := [node.node for node in nodes if not node.drivers]:
        return warning(
            f"these nodes are connected and run no CSI driver: {first_names(idle)}; claims for them cannot be served",
            "see that the vendor's driver and its node-driver-registrar run there, or name the driver's socket by the "
            "agent's --driver; run csi-bridge doctor there",
        )
    return ok(f"{len(nodes)} of {len(nodes)} nodes are connected")


def _drivers(state: HubState) -> set[str]:
    return {proxy.driver for proxy in state.hub.drivers}.union(*(node.drivers for node in state.nodes))


def _check_driver(driver: str, state: HubState) -> Finding:
    nodes = [node for node in state.nodes if driver in node.drivers]
    if not nodes:
        do = "compare --drivername with the name that the vendor's driver gives; see that it runs, on a connected node"
        return wrong(f"proxy driver {driver} is connected, and no edge node has reported such a driver", do)
    where = first_names(sorted(node.node for node in nodes))
    if all(proxy.driver != driver for proxy in state.hub.drivers):
        if all(driver in node.node_only for node in nodes):
            return ok(
                f"driver {driver} runs on {where}, and needs no proxy driver, as it says that it has no controller"
            )
        do = f"start csi-bridge driver --drivername={driver} beside its sidecars; look at its log if it runs"
        return warning(f"driver {driver} runs on {where}, and no proxy driver of that name is connected", do)
    if not any(node.connected for node in nodes):
        return wrong(f"driver {driver} runs on {where}, of which none is connected", "see the check of the nodes")
    return ok(f"driver {driver} runs on {where}, and its proxy driver is connected")


def _check_problems(state: HubState) -> Iterator[Finding]:
    for line in (*status.problems(state), *refusals(state.hub.refused)):
        found = wrong if line.startswith(_HARM) else warning
        page = next(page for words, page in READ if words in line)
        yield found(line, f"do what the message names; {page} has more")


def surroundings(settings: HubSettings) -> list[Result]:
    checks = [("state directory", check_state(settings.state_dir))]
    if settings.listen is None:
        checks.append(("listen", warning("without --listen no edge agent can connect", "start the hub with it")))
    if (files := settings.tls_files()) is not None:
        checks.append(("certificate", check_certificate(files, now=time.time())))
    return checks
