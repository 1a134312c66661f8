"""A driver's services: which of the sockets that give its name serves each, and what the driver is as a whole.

Most vendors have two plugins, the controller's and the node's: two processes, two sockets, one name.

Rules:

* A socket serves Controller or Node unless it answers UNIMPLEMENTED to the question for its capabilities, which every
  plugin with that service answers (CSI spec). What it announces counts only beside that: a node plugin often announces
  what the controller's alone serves.
* Of several that serve the same, the one that an operator named is the controller's, and the other one is the node's.
* What no socket announces goes where Controller goes: Identity, and what nobody knows.
* No call goes to a socket that has refused its service: the one that serves it is away, or not known yet, and a caller
  takes UNIMPLEMENTED for final.
"""

from collections.abc import Iterable, Sequence

from common.csi.csi_pb2 import GetPluginCapabilitiesResponse, PluginCapability
from common.csi.methods import PREFIX
from common.errors import DriverAmbiguous, DriverMissing
from common.reports import (
    CONTROLLER_GET_CAPABILITIES,
    GET_PLUGIN_CAPABILITIES,
    GROUP_GET_CAPABILITIES,
    NODE_GET_CAPABILITIES,
    REPORTED_METHODS,
    Answer,
    DriverReport,
)
from common.status import Code
from edge.drivers import Driver

NODE = "Node"
_CONTROLLER, _GROUP, _METADATA = "Controller", "GroupController", "SnapshotMetadata"

_ASKED = {
    _CONTROLLER: CONTROLLER_GET_CAPABILITIES,
    _GROUP: GROUP_GET_CAPABILITIES,
    NODE: NODE_GET_CAPABILITIES,
}
"""What is UNIMPLEMENTED at a socket that does not serve it. SnapshotMetadata has nothing of the kind."""

_ANNOUNCED = {
    _CONTROLLER: PluginCapability.Service.CONTROLLER_SERVICE,
    _GROUP: PluginCapability.Service.GROUP_CONTROLLER_SERVICE,
    _METADATA: PluginCapability.Service.SNAPSHOT_METADATA_SERVICE,
}
"""How GetPluginCapabilities names it. Node is not announced."""

_PARTED = (_CONTROLLER, NODE)
"""What a vendor may have in processes of their own. Anything else may be missing everywhere, and is refused by the
driver itself."""


def find_driver(drivers: Sequence[Driver], name: str, node: str, method: str) -> Driver:
    """The socket of a driver that a call of a method goes to.

    Raises:
        DriverMissing: no driver has the name, or none of that name serves this.
        DriverAmbiguous: several do. That one of them is away makes the other no more the one that is meant.
    """
    service = _service_of(method)
    sockets = _by_name(drivers).get(name)
    if not sockets:
        raise DriverMissing(name, node)
    found = _foremost(sockets, service)
    if service in _PARTED and _refuses(found[0], service):
        raise DriverMissing(name, node, service)
    if len(found) > 1:
        raise _ambiguous(name, node, found)
    return found[0]


def services(driver: Driver) -> list[str]:
    """What a socket serves, by what it says, in the words of CSI."""
    if driver.report is None:
        return []
    accepted = (service for service in (_CONTROLLER, _GROUP, _METADATA, NODE) if not _refuses(driver, service))
    return [service for service in accepted if service not in _ANNOUNCED or _announces(driver, service)]


def ambiguities(drivers: Sequence[Driver], node: str) -> list[str]:
    """The drivers that get no call because several sockets serve the same, in words."""
    foremost = ((name, _foremost(them, service)) for name, them in _by_name(drivers).items() for service in _PARTED)
    return list(dict.fromkeys(str(_ambiguous(name, node, found)) for name, found in foremost if len(found) > 1))


def told_reports(drivers: Sequence[Driver]) -> list[DriverReport]:
    """What the hub is told: each driver once, of every service what the socket says that serves it.

    While a socket that an operator named has not said who it is, a driver that lacks a controller is not told of: that
    may be there, and sidecars ask only once what a driver can do.
    """
    unheard = any(driver.named and driver.report is None for driver in drivers)
    named = _by_name(drivers).items()
    return [_merged(name, them) for name, them in named if not (unheard and _lacks_controller(them))]


def _merged(name: str, sockets: Sequence[Driver]) -> DriverReport:
    told = {method: _answer(_foremost(sockets, _service_of(method))[0], method) for method in REPORTED_METHODS}
    answers = {method: answer for method, answer in told.items() if answer is not None}
    return DriverReport(name, sockets[0].node, answers)


def _by_name(drivers: Iterable[Driver]) -> dict[str, list[Driver]]:
    """The sockets that have given a name."""
    found: dict[str, list[Driver]] = {}
    for driver in drivers:
        if driver.report is not None:
            found.setdefault(driver.report.driver, []).append(driver)
    return found


def _foremost(sockets: Sequence[Driver], service: str) -> Sequence[Driver]:
    """Those of a driver's sockets that a call of a service may go to: several if nothing tells them apart."""
    if len(sockets) == 1:
        return sockets
    ranks = [_rank(driver, service) for driver in sockets]
    return [driver for driver, rank in zip(sockets, ranks, strict=True) if rank == max(ranks)]


def _rank(driver: Driver, service: str) -> tuple[bool, ...]:
    """What speaks for a socket; what comes first counts most."""
    if service == NODE:
        return (not _refuses(driver, NODE), not driver.named)
    asked = (service, _CONTROLLER)
    return (*(says for it in asked for says in (not _refuses(driver, it), _announces(driver, it))), driver.named)


def _refuses(driver: Driver, service: str) -> bool:
    answer = _answer(driver, _ASKED.get(service, ""))
    return answer is not None and answer.code == Code.UNIMPLEMENTED


def _announces(driver: Driver, service: str) -> bool:
    answer = _answer(driver, GET_PLUGIN_CAPABILITIES)
    said = GetPluginCapabilitiesResponse.FromString(answer.body if answer is not None else b"").capabilities
    announced = {it.service.type for it in said if it.WhichOneof("type") == "service"}
    return _ANNOUNCED.get(service) in announced


def _lacks_controller(sockets: Iterable[Driver]) -> bool:
    return all(_refuses(driver, _CONTROLLER) for driver in sockets)


def _answer(driver: Driver, method: str) -> Answer | None:
    return driver.report.answers.get(method) if driver.report is not None else None


def _service_of(method: str) -> str:
    """`/csi.v1.Controller/CreateVolume` → `Controller`."""
    return method.removeprefix(PREFIX).partition("/")[0]


def _ambiguous(name: str, node: str, found: Iterable[Driver]) -> DriverAmbiguous:
    return DriverAmbiguous(name, node, tuple(str(driver.socket) for driver in found))
