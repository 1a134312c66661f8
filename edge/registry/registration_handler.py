"""Decides whether a driver may register under its name, and registers it.

Rules:

* A registration needs this node alone (docs/csi-contract.md#registration-needs-this-node-alone): the driver answers
  NodeGetInfo and NodeGetCapabilities, and nothing known here contradicts the answers. Both are called at each
  registration.
* A second socket takes over a name in three cases: the first one's registration socket is gone or another file, nothing
  answers there, or the second offers a higher version (docs/csi-contract.md#when-a-second-socket-takes-over-a-name).
  Otherwise it is refused.
* Waiting for one driver delays no other.
"""

import functools
from pathlib import Path

from common.csi.reports import GET_PLUGIN_INFO, NODE_GET_CAPABILITIES, NODE_GET_INFO
from common.errors import CallError
from common.net.sockets import file_id, is_served
from common.parsers import LONGEST_SOCKET_PATH_BYTES
from common.relay.errors import OUT_OF_RESOURCES, VendorUnreachable
from common.status import Status, code_name
from edge.calls.drivers import Driver
from edge.registry.driver_sockets import DriverSockets, SharedSocket, fits
from edge.registry.drivers_store import DriversStore, NodeDriver
from edge.registry.registration import (
    NodeInfo,
    NotRegistered,
    PluginOffer,
    Registration,
    Version,
    check_name,
    highest_version,
    read_node_info,
    shorten,
)

# The limit for each of NodeGetInfo and NodeGetCapabilities at a registration: the kubelet's csiTimeout.
_ASK_LIMIT_S = 120.0

_ANSWERS_LIMIT_S = 2.0  # the driver that holds a name must answer within this time to keep it


async def register(offer: PluginOffer, store: DriversStore, sockets: DriverSockets) -> None:
    """Register a driver in the store. Raises NotRegistered if it may not register, or did not answer."""
    try:
        check_name(offer.name)
        version = highest_version(offer.versions)
        endpoint = _endpoint(offer)
        with store.registering(offer), sockets.asking(endpoint) as shared:
            await _see_that_name_is_free(offer, store.find(offer.name), shared, version)
            info = await _ask(shared.driver, offer.name, store)
            store.check_labels(offer.name, info)
            registration = Registration(offer.name, str(endpoint), offer.socket, version, info)
            store.install(registration, shared).file = offer.file
            store.node_plugins[offer.name] = registration.endpoint
    except (OSError, ValueError, CallError) as error:
        raise NotRegistered(shorten(str(error))) from error


async def _see_that_name_is_free(
    offer: PluginOffer, known: NodeDriver | None, shared: SharedSocket, version: Version
) -> None:
    if known is None or known.file is None or known.registration.socket == offer.socket:
        return
    holder = known.registration
    if version > holder.version or file_id(holder.socket) != known.file:
        return
    same = known.driver is shared.driver
    if is_served(Path(holder.socket)) if same else await _answers(known.driver, offer.name):
        raise ValueError(
            f"a driver {offer.name} is registered already, by {holder.socket} for {holder.endpoint}, and it answers "
            f"there"
        )


async def _ask(driver: Driver, name: str, store: DriversStore) -> NodeInfo:
    capabilities = await driver.unary(NODE_GET_CAPABILITIES, b"", timeout_s=_ASK_LIMIT_S, to=name)
    announced = functools.partial(store.has_topology, name)  # last: the controller may answer meanwhile
    info = await driver.node_info(b"", timeout_s=_ASK_LIMIT_S, to=name, announced=announced)
    return read_node_info(_answer(NODE_GET_INFO, *info), _answer(NODE_GET_CAPABILITIES, *capabilities))


def _endpoint(offer: PluginOffer) -> Path:
    endpoint = offer.endpoint.removeprefix("unix://") or offer.socket
    if not fits(endpoint):
        raise ValueError(
            f"its endpoint {shorten(endpoint)!r} is not the absolute path of a UNIX socket of at most "
            f"{LONGEST_SOCKET_PATH_BYTES} bytes"
        )
    return Path(endpoint)


def _answer(method: str, status: Status, body: bytes | None) -> bytes:
    if not status.ok:
        what = method.rpartition("/")[2]
        raise ValueError(f"it answered {what} with {code_name(status.code)}: {shorten(status.message)}")
    return body or b""


async def _answers(driver: Driver, name: str) -> bool:
    try:
        await driver.unary(GET_PLUGIN_INFO, b"", timeout_s=_ANSWERS_LIMIT_S, to=name)
    except CallError as error:
        # The holder keeps its name if the agent could not ask it: the offer is tried again.
        if isinstance(error.__cause__, VendorUnreachable) and error.__cause__.why == OUT_OF_RESOURCES:
            raise
        return False
    return True
