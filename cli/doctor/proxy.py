"""The checks of a proxy driver, at its sidecars' socket."""

import asyncio
import os
from pathlib import Path

from cli.doctor import csi_probe
from cli.doctor.finding import Check, Finding, Level, Result, known, ok, perform, warning, wrong
from cli.doctor.sockets import UNIX_TABLE, check_socket, connections
from common.errors import BridgeError
from common.status import Code, Status, code_name

_LOG = "look at the proxy driver's log"
_NO_ANSWER = {Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED}
"""The codes of a call that did not reach the vendor's driver, or whose answer was lost."""


async def examine(socket: Path, *, limit_s: float) -> list[Result]:
    """Check the proxy driver at this socket."""
    connected = connections(socket, os.fsdecode(await asyncio.to_thread(UNIX_TABLE.read_bytes)))
    first = check_socket(socket, start=f"csi-bridge driver, with --endpoint=unix://{socket}", private=True)

    async def identity() -> Finding:
        try:
            said = await csi_probe.identify(socket)
            if said.ready is False:
                return check_unknown(said.name, await csi_probe.call(socket, csi_probe.GET_CAPACITY))
        except BridgeError as error:
            do = "see that csi-bridge driver serves this socket and nothing else does; " + _LOG
            return wrong(f"what serves at {socket} does not answer as a CSI driver: {error}", do)
        return ok(f"driver {said.name} {said.version} answers at {socket}")

    async def call() -> Finding:
        try:
            return check_call(await csi_probe.call(socket, csi_probe.GET_CAPACITY))
        except BridgeError as error:
            return wrong(f"{socket} does not answer: {error}", _LOG)

    results = [Result("socket", first)]
    if first.level is Level.WRONG:
        return results
    checks = [
        known("sidecars", check_sidecars(connected, socket)),
        Check("identity", identity),
        Check("call", call),
    ]
    return results + await perform(checks, limit_s=limit_s)


def check_unknown(driver: str, status: Status) -> Finding:
    """The finding for a proxy driver that does not know its driver yet; `status`, of a call, has the reason."""
    why = f": {status.message}" if status.code in _NO_ANSWER else ""
    return wrong(
        f"the proxy driver has not been told of driver {driver} yet, so its sidecars wait{why}",
        "see that it has a link to the hub; then, on the hub's host, that csi-bridge status shows a connected node "
        f"with driver {driver}: if not, start the vendor's driver there, or correct --drivername",
    )


def check_sidecars(connected: int, socket: Path) -> Finding:
    """Whether any sidecar is connected."""
    if connected:
        return ok(f"connections to {socket}: {connected}; each sidecar keeps one")
    do = "see that the sidecars run, that their --csi-address names this socket, and that they share its directory"
    return warning(f"no sidecar is connected to {socket}", do)


def check_call(status: Status) -> Finding:
    """Whether a call reaches the vendor's driver. The driver may answer with an error."""
    if status.code in _NO_ANSWER:
        do = "follow the message; the events of the waiting claim or volume have it, too"
        return wrong(
            f"a call that names no node (GetCapacity) ends with {code_name(status.code)}: {status.message}", do
        )
    return ok(f"a call gets to the vendor's driver and back (GetCapacity: {code_name(status.code)})")
