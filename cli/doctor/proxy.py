"""The checks of a proxy driver, at its sidecars' socket."""

from pathlib import Path

from cli.doctor import csi_probe
from cli.doctor.finding import Finding, Level, Result, attempt, ok, warning, wrong
from cli.doctor.sockets import check_socket, connections
from common.csi.reports import GET_PLUGIN_CAPABILITIES, Answer, is_node_only
from common.status import Code, Status, code_name

# The codes of a call that did not reach the vendor's driver, or whose answer was lost.
_NO_ANSWER = {Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED}

_NODE_ONLY = (
    "with attachRequired: false in its CSIDriver, stop this proxy driver and its sidecars; if its controller is "
    "another process, name its socket by the agent's --driver, and restart this proxy driver and its sidecars"
)


async def examine(socket: Path, *, limit_s: float) -> list[Result]:
    connected = connections(socket)  # before the doctor itself connects
    first = check_socket(socket, start=f"csi-bridge driver, with --endpoint=unix://{socket}")
    if first.level is Level.WRONG:
        return [("socket", first)]
    do = "see that csi-bridge driver serves this socket and nothing else does; look at its log"
    driver = await attempt("driver", _check_socket(socket), do, limit_s=limit_s)
    return [("socket", first), ("sidecars", check_sidecars(connected, socket)), driver]


async def _check_socket(socket: Path) -> Finding:
    said, is_ready = await csi_probe.identify(socket)
    asked, body = await csi_probe.call(socket, GET_PLUGIN_CAPABILITIES)
    if is_node_only(Answer(asked.code, body=body or b"")):
        what = f"driver {said.name} says that it has no controller: of all sidecars, only csi-attacher works"
        return warning(what, _NODE_ONLY)
    status, _ = await csi_probe.call(socket, csi_probe.GET_CAPACITY)
    return check_driver(said.name, status, is_known=is_ready)


def check_sidecars(connected: int, socket: Path) -> Finding:
    if connected:
        return ok(f"connections to {socket}: {connected}; each sidecar keeps one")
    do = "see that the sidecars run, that their --csi-address names this socket, and that they share its directory"
    return warning(f"no sidecar is connected to {socket}", do)


def check_driver(name: str, status: Status, *, is_known: bool) -> Finding:
    if not is_known:
        return wrong(
            f"the proxy driver has not been told of driver {name} yet, so its sidecars wait: {status.message}",
            "see that it has a link to the hub; then, on the hub's host, that csi-bridge status shows a connected node "
            f"with driver {name}: if not, start the vendor's driver there, or correct --drivername",
        )
    if status.code in _NO_ANSWER:
        return wrong(
            f"a call that names no node (GetCapacity) ends with {code_name(status.code)}: {status.message}",
            "follow the message; the events of the waiting claim or volume have it, too",
        )
    return ok(f"a call gets to driver {name} and back (GetCapacity: {code_name(status.code)})")
