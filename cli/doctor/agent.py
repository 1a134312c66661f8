"""The checks of an edge agent: its state, its link, its directories and its drivers."""

import asyncio
import errno
import os
import socket
import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cli.doctor import csi_probe, hub_probe
from cli.doctor.certificates import check_certificate, is_refused
from cli.doctor.clock import check_clock, skew_s
from cli.doctor.disk import check_directory, check_propagation, check_state
from cli.doctor.finding import Check, Finding, Level, Result, known, listed, ok, perform, warning, wrong
from cli.doctor.sockets import LOOK_AT_LOG, answers, check_socket
from cli.doctor.watchdog import check_watchdog
from cli.edge_volumes import ask, ask_agent
from cli.process_options import EDGE_OPTIONS
from cloud.admission import Role
from common.errors import BridgeError
from common.pages.agent import AgentStatus, DriverSocket, NodeVolumes
from common.pages.json_form import shown
from common.tls import TlsFiles, TlsIdentity
from common.version import SOFTWARE
from edge.disk.mounts import read_table
from edge.kubelet_part import KUBELET_SOCKET
from edge.settings import AgentSettings, complete

_RENEWS = (
    "the agent renews it by itself when the hub answers; if it has a problem with that, as shown here, join the node "
    "again: csi-bridge edge join, with a token for this node"
)
"""The advice for a certificate from the join."""

_LOG = "look at the agent's log (journalctl -u csi-bridge-edge, or kubectl logs)"


UNIT = "csi-bridge-edge"
"""The agent's systemd unit (deploy/edge/csi-bridge-edge.service)."""

UNIT_DIRECTORIES = tuple(
    Path(directory) / "systemd/system" for directory in ("/etc", "/run", "/usr/local/lib", "/usr/lib", "/lib")
)
"""Where systemd looks for units (systemd.unit(5))."""


def service_log(directories: Sequence[Path] = UNIT_DIRECTORIES) -> str:
    """The command that shows the log of the agent's unit; empty if no such unit is installed."""
    installed = any(os.access(directory / f"{UNIT}.service", os.F_OK) for directory in directories)
    return f"journalctl -u {UNIT}" if installed else ""


async def examine(status: Path, *, limit_s: float) -> list[Result]:
    """Check the agent with this status socket."""
    start = f"csi-bridge edge run, with --status unix://{status}"
    log = f"read {found}" if (found := service_log()) else LOOK_AT_LOG
    first = check_socket(status, start=start, private=True, log=log)
    results = [Result("socket", first)]
    if first.level is Level.WRONG:
        return results
    try:
        state = await asyncio.to_thread(ask_agent, status, "/status", AgentStatus, timeout_s=limit_s)
        volumes = await asyncio.to_thread(ask, status, timeout_s=limit_s)
        settings = complete(EDGE_OPTIONS.read(state.settings))
    except BridgeError as error:
        return [*results, Result("agent", wrong(str(error), _LOG))]
    checks = [
        known("version", check_version(state)),
        known("link", check_link(state)),
        *_hub_checks(settings),
        Check("state directory", lambda: asyncio.to_thread(check_state, settings.state_dir)),
        *([Check("watchdog", lambda: asyncio.to_thread(check_watchdog))] if settings.fence == "on" else []),
        *_kubelet_checks(settings),
        *_driver_checks(state, own=settings.registration == "own"),
        *_runtime_checks(settings),
        *(known("problem", warning(text, _LOG)) for text in state.problems),
        *(_volume_checks(volumes) if settings.registration == "own" else ()),
    ]
    return results + await perform(checks, limit_s=limit_s)


# ---- the link --------------------------------------------------------------------------------------------------------


def check_version(state: AgentStatus) -> Finding:
    """Whether the agent is of the same version as this command, and as the hub."""
    agents, hubs = state.software, state.hub_software
    if agents != SOFTWARE:
        return warning(f"the agent is {agents}, and {SOFTWARE} is installed here", "restart the agent")
    if hubs and hubs != agents:
        do = "they work together; bring both to one version when you can"
        return warning(f"the agent is {agents}, and the hub is {hubs}", do)
    return ok(f"agent and hub are {agents}" if hubs else f"the agent is {agents}")


def check_link(state: AgentStatus) -> Finding:
    """Whether the agent has a link to the hub. If not, the finding has the reason."""
    if state.connected:
        return ok(f"node {state.node} is connected to {state.hub} since {shown(state.since)}")
    return wrong(
        f"node {state.node} has no link to {state.hub} since {shown(state.since)}: {state.why}",
        "see the checks of the hub and of the certificate below; on the hub's host, csi-bridge nodes shows the peers "
        "that the hub refused, and why",
    )


def _hub_checks(settings: AgentSettings) -> list[Check]:
    answered: list[hub_probe.Answer] = []
    files = _tls_files(settings)

    async def hub() -> Finding:
        try:
            tls = TlsIdentity(files, server=False).context() if files is not None else None
            answer = await hub_probe.probe(settings.hub, tls)
        except (BridgeError, OSError) as error:
            refused = files is not None and is_refused(files, now=time.time())
            return wrong(str(error), advice(error, refused=refused))
        if not answer.is_hub:
            return wrong(f"the server at {settings.hub} is no hub: it answers {answer.status}", "correct --hub")
        answered.append(answer)
        return ok(f"{settings.hub} answers" + (", and takes this node's certificate" if files is not None else ""))

    async def clock() -> Finding:
        if not answered:
            return warning("the hub did not answer, so its time is not known", "see the check of the hub")
        (it,) = answered
        return check_clock(skew_s(it.date, asked=it.asked, answered=it.answered), of="the hub")

    async def certificate() -> Finding:
        assert files is not None
        found = check_certificate(files, server=False, now=time.time(), name=settings.node, role=Role.EDGE)
        return replace(found, do=_RENEWS) if settings.is_joined and found.level is not Level.OK else found

    return [Check("hub", hub, _DROPPED), Check("clock", clock), *([Check("certificate", certificate)] if files else [])]


_DROPPED = (
    "nothing comes back: look for a firewall or security group that drops the packets, a wrong route, or a wrong host "
    "or port in --hub; the port is that of the hub's --listen"
)


def advice(error: BaseException, *, refused: bool = False) -> str:
    """The advice if the hub's address could not be used.

    Args:
        error: the cause.
        refused: whether the hub refuses this node's certificate (`is_refused`).
    """
    cause = error.__cause__ or error
    if isinstance(cause, ssl.SSLCertVerificationError):
        return _UNTRUSTED.get(
            cause.verify_code,
            "give the agent's --tls-ca the CA that signed the hub's certificate (ca.crt of the hub); the file that is "
            "there is another CA's",
        )
    if isinstance(cause, ssl.SSLError):
        return "see the check of the certificate; the hub takes only certificates that the CA in its --tls-ca signed"
    if isinstance(cause, socket.gaierror | UnicodeError):
        return "correct the host in --hub, or mend the name resolution (DNS, /etc/hosts) of this machine"
    if isinstance(cause, ConnectionRefusedError):
        return "see that the hub runs, and compare the port in --hub with the hub's --listen"
    if isinstance(cause, OSError) and cause.errno in {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ETIMEDOUT}:
        return _DROPPED
    ended = isinstance(cause, ConnectionResetError | BrokenPipeError | EOFError)
    return _REFUSED if refused and ended else _ODD


_ODD = "see that the hub runs, and that --hub names it and no other server or proxy"
_REFUSED = "see the check of the certificate: the hub ends the connection of a node whose certificate it refuses"


_UNTRUSTED = {
    9: "compare this machine's clock with the hub's: the hub's certificate is not valid yet",
    10: "renew the hub's certificate, or mend this machine's clock",
    62: "name the hub in --hub as its certificate does, or make one with this host name as subjectAltName",
    64: "name the hub in --hub as its certificate does, or make one with this address as subjectAltName",
}
"""By OpenSSL's X509_V_ERR_…: CERT_NOT_YET_VALID, CERT_HAS_EXPIRED, HOSTNAME_MISMATCH, IP_ADDRESS_MISMATCH."""


def _tls_files(settings: AgentSettings) -> TlsFiles | None:
    if settings.tls_ca is None or settings.tls_cert is None or settings.tls_key is None:
        return None
    return TlsFiles(settings.tls_ca, settings.tls_cert, settings.tls_key)


# ---- the kubelet's part ----------------------------------------------------------------------------------------------


def _kubelet_checks(settings: AgentSettings) -> list[Check]:
    root, own = settings.root_dir, settings.registration == "own"

    async def kubelet() -> Finding:
        there = await asyncio.to_thread(answers, root / KUBELET_SOCKET)
        seen = parts_seen(root.resolve(), [mount.path for mount in read_table(root).mounts])
        return check_kubelet(own=own, there=there, root=root, seen=seen)

    async def propagation() -> Finding:
        return check_propagation(root.resolve(), read_table(root).mounts)

    checks = [Check("kubelet", kubelet)]
    if own:
        checks.append(Check("root directory", lambda: asyncio.to_thread(check_directory, root, flag="--root-dir")))
        checks.append(Check("propagation", propagation))
    return checks


def parts_seen(root: Path, points: Sequence[str]) -> list[str]:
    """The directories of a root directory that a container mounts without the rest; none if it has the whole.

    Args:
        root: the root directory, without symbolic links.
        points: the mount points.
    """
    if os.access(root / _PODS, os.F_OK):
        return []
    return sorted({path.name for path in map(Path, points) if path.parent == root})


_PODS = "pods"
"""Every kubelet makes it below its root directory when it starts."""


def check_kubelet(*, own: bool, there: bool, root: Path, seen: Sequence[str] = ()) -> Finding:
    """Whether either the agent or a kubelet mounts volumes here, and not both.

    Args:
        own: whether the agent mounts the volumes.
        there: whether a kubelet answers.
        root: the root directory.
        seen: the visible directories of it, if a container does not have the whole (`parts_seen`).
    """
    if own and there:
        what = f"a kubelet answers below {root}, and the agent mounts volumes there, too"
        return wrong(what, "stop one of them; on a node with a kubelet the agent runs with --registration=observe")
    if not own and not there and seen:
        return ok(f"whether a kubelet runs is not checked: this container sees only {listed(seen)} of {root}")
    if not own and not there:
        what = f"no kubelet answers below {root}, and with --registration=observe the agent mounts nothing"
        do = "start the kubelet, or correct --root-dir; without a kubelet the agent runs with --registration=own"
        return warning(what, do)
    return ok(f"a kubelet mounts the volumes below {root}" if there else f"the agent mounts the volumes below {root}")


def _driver_checks(state: AgentStatus, *, own: bool) -> list[Check]:
    drivers = state.drivers
    if not drivers:
        do = "start the vendor's driver and its node-driver-registrar, or name its socket by the agent's --driver"
        what = "this node has no CSI driver; claims for it fail, some with 'no topology key found'"
        return [known("drivers", warning(what, do))]
    checks = [_driver_check(Path(driver.socket), driver.trouble) for driver in drivers]
    if own:
        return [*checks, known("registered", check_registered(drivers, state.registered))]
    return checks + [_relay_check(driver) for driver in drivers]


def _relay_check(driver: DriverSocket) -> Check:
    async def relay() -> Finding:
        try:
            own_topology = await csi_probe.has_own_topology(Path(driver.socket))
        except BridgeError as error:
            return warning(f"the topology of the driver at {driver.socket} is not known: {error}", _SEE_DRIVER)
        return check_relay(driver.name, own_topology=own_topology, relay=driver.relay)

    return Check("relay", relay)


def check_relay(driver: str, *, own_topology: bool, relay: str) -> Finding:
    """Whether the kubelet learns this node for volumes of a driver. Only local placement needs that."""
    if own_topology:
        return ok(f"driver {driver} has a topology of its own and needs no relay")
    if relay:
        return ok(f"the relay serves driver {driver} at {relay}")
    return ok(
        f"driver {driver} has no topology of its own, and the kubelet calls it directly; that is right unless its "
        "proxy driver runs with --placement=local: then claims fail with 'no topology key found', and the agent needs "
        "--relay-dir"
    )


_SEE_DRIVER = "see that the driver runs, and look at its log"


def _driver_check(path: Path, trouble: str) -> Check:
    async def driver() -> Finding:
        do = _SEE_DRIVER
        try:
            identity = await csi_probe.identify(path)
        except BridgeError as error:
            return wrong(f"the driver at {path}: {error}", do)
        who = f"driver {identity.name} {identity.version} at {path}"
        if identity.ready is False:
            return warning(f"{who} says that it is not ready", do)
        if trouble:
            return wrong(f"{who} answers, but not every required call: {trouble}", do)
        return ok(f"{who} answers")

    return Check("driver", driver)


def check_registered(drivers: Sequence[DriverSocket], registered: Sequence[Mapping[str, Any]]) -> Finding:
    """Whether every driver is registered for mounting, which makes its entry in the CSINode."""
    entries = [f"{entry['name']} as {entry['nodeID']}" for entry in registered]
    missing = sorted({driver.name for driver in drivers} - {entry["name"] for entry in registered})
    if missing:
        do = "look at the logs of its node-driver-registrar and of the agent; it must answer NodeGetInfo"
        return warning(f"no volume of these drivers can be mounted here: {listed(missing)}", do)
    return ok(f"the CSINode has an entry for {listed(entries)}")


def _runtime_checks(settings: AgentSettings) -> list[Check]:
    """The checks of the runtimes that mount volumes in their guests. Most nodes have none, and import nothing."""
    if not settings.direct_runtime:
        return []
    from cli.doctor.direct import direct_checks

    return direct_checks(settings.direct_runtime, settings.direct_run_dir)


def _volume_checks(volumes: NodeVolumes) -> list[Check]:
    return [known("knowledge", check_knowledge(volumes)), known("volumes", check_volumes(volumes))]


def check_knowledge(volumes: NodeVolumes) -> Finding:
    """Whether the node knows its pods, and the hub has the node's facts."""
    if volumes.trouble:
        return wrong(
            f"the agent mounts nothing, or cannot keep its records: {volumes.trouble}",
            "repair or free the disk of --state-dir",
        )
    if volumes.as_of is None:
        do = "start the hub with --kubeconfig or --manifests; see csi-bridge status on the hub's host"
        return warning("the hub has never sent this node its pods, so no volume is mounted", do)
    waiting = volumes.facts_waiting
    if not volumes.connected:
        return warning(
            f"the node works offline, from its records of {shown(volumes.as_of)}; {waiting} facts wait for the hub", ""
        )
    if not volumes.in_step:
        do = "wait a moment; if it stays, csi-bridge status on the hub's host says why"
        return warning("the hub has not yet sent this node everything", do)
    if waiting:
        do = "wait a moment; if it stays, csi-bridge status on the hub's host says why"
        return warning(f"{waiting} facts of this node (its CSINode, volumes in use, events) are not at the hub yet", do)
    return ok("the node has its pods, and the hub has all facts of the node")


def check_volumes(volumes: NodeVolumes) -> Finding:
    """Whether every wanted volume is published without an error."""
    found = volumes.volumes
    failing = [one for one in found if one.error]
    if not failing:
        return ok(f"{sum(one.state == 'published' for one in found)} of {len(found)} volumes are published")
    one = failing[0]
    name = f"{one.namespace}/{one.pod} {one.volume}"
    return warning(
        f"{len(failing)} of {len(found)} volumes have an error; {name}, for one: {one.error}",
        "see csi-bridge edge volumes, and the driver's log",
    )
