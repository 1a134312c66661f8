"""The services of a driver's sockets: chooses the socket for a call, and the answers that the hub gets about a driver.

Most vendors have two plugins, one for the controller and one for the node: two processes, two sockets, one name.

Rules:

* A socket serves Controller or Node unless it answers UNIMPLEMENTED to ControllerGetCapabilities or
  NodeGetCapabilities, which every plugin with that service answers (CSI spec). The services that a socket announces
  (GetPluginCapabilities) only decide among several such sockets: a node plugin often announces services that only the
  controller has.
* If several sockets serve the same service, the one that an operator named is the controller's, and the other is the
  node plugin's. If the node plugin's socket is known (`edge.registry.driver_registry`), only this one serves Node, even
  while it is away.
* Identity, and services that no socket announces, go to the socket that serves Controller.
* A socket refuses a service by that UNIMPLEMENTED. A socket that has refused Node gets no Node call. A socket that has
  refused Controller gets only Identity and Node calls. The agent answers other calls with `driver_missing`: the
  driver's other plugin is away or not known yet, and a caller would take the socket's UNIMPLEMENTED for final. The
  agent passes on a method that a controller lacks: the controller refuses it itself.
* Until a socket that an operator named has been asked for its name, it may be any driver's controller. Until then no
  controller call goes to another socket, because the named one may be running the same operation. If the named socket
  was asked and did not answer, only drivers without a controller wait for it.
* A driver is away while the agent cannot connect to the socket that serves Controller.
* A driver has a topology of its own if any of its sockets says so. A driver that had one keeps it until its node plugin
  and all sockets named by an operator have answered: the controller may be at one of these.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from common.csi.csi_pb2 import GetPluginCapabilitiesResponse, PluginCapability
from common.csi.methods import PREFIX
from common.csi.reports import (
    CONTROLLER_GET_CAPABILITIES,
    GET_PLUGIN_CAPABILITIES,
    GROUP_GET_CAPABILITIES,
    NODE_GET_CAPABILITIES,
    REPORTED_METHODS,
    Answer,
    DriverReport,
)
from common.errors import CallError, driver_missing
from common.objects.topology import has_topology as announces_topology
from common.objects.topology import with_topology as announcing_topology
from common.status import Code
from edge.calls.drivers import Driver

NODE = "Node"
_IDENTITY = "Identity"
_CONTROLLER = "Controller"
_GROUP = "GroupController"
_METADATA = "SnapshotMetadata"

# The method that a socket answers with UNIMPLEMENTED if it does not serve the service. SnapshotMetadata has none.
_ASKED = {
    _CONTROLLER: CONTROLLER_GET_CAPABILITIES,
    _GROUP: GROUP_GET_CAPABILITIES,
    NODE: NODE_GET_CAPABILITIES,
}

# The services' names in GetPluginCapabilities. Node has none.
_ANNOUNCED = {
    _CONTROLLER: PluginCapability.Service.CONTROLLER_SERVICE,
    _GROUP: PluginCapability.Service.GROUP_CONTROLLER_SERVICE,
    _METADATA: PluginCapability.Service.SNAPSHOT_METADATA_SERVICE,
}

_PARTS = (_CONTROLLER, NODE)  # a vendor's two plugins, each under the name of its main service


def find_driver(drivers: Sequence[Driver], name: str, node: str, method: str) -> Driver:
    """Return the socket of a driver to which a call of this method goes.

    Raises CallError if there is none, or several sockets serve it, even if one of them is away now.
    """
    service = _service_of(method)
    sockets = _of_name(drivers, name)
    if not sockets:
        raise driver_missing(name, node)
    found = _foremost(sockets, service)
    part = _part_of(service)
    missing = _refuses(found[0], part) or (part == _CONTROLLER and awaits_controller(drivers, name))
    if missing and service != _IDENTITY:
        raise driver_missing(name, node, service)
    if len(found) > 1:
        raise _ambiguous(name, node, found)
    return found[0]


def services(driver: Driver) -> list[str]:
    if driver.report is None:
        return []
    known = (service for service in (_CONTROLLER, _GROUP, _METADATA, NODE) if not _refuses(driver, _part_of(service)))
    accepted = (service for service in known if not _refuses(driver, service))
    return [service for service in accepted if service not in _ANNOUNCED or _announces(driver, service)]


def ambiguities(drivers: Sequence[Driver], node: str) -> list[str]:
    foremost = ((name, _foremost(them, part)) for name, them in _by_name(drivers).items() for part in _PARTS)
    return list(dict.fromkeys(str(_ambiguous(name, node, found)) for name, found in foremost if len(found) > 1))


def told_reports(drivers: Sequence[Driver], with_topology: Collection[str]) -> list[DriverReport]:
    """Return the reports for the hub, one per driver; each answer comes from the socket that serves its service.

    A driver is left out while a socket that may be its controller has not answered. Its Node answers are left out while
    its node plugin has not answered. Otherwise the report could lack capabilities, and sidecars read them only once
    (docs/csi-contract.md#sidecars-read-capabilities-once).
    """
    named = _by_name(drivers).items()
    return [
        _merged(name, them, own_topology=has_topology(drivers, name, with_topology))
        for name, them in named
        if not awaits_controller(drivers, name)
    ]


def awaits_controller(drivers: Sequence[Driver], name: str) -> bool:
    """Whether the controller of a driver may be at a named socket that has not answered yet."""
    unheard = [driver for driver in drivers if driver.named and driver.report is None]
    if not unheard:
        return False
    sockets = _of_name(drivers, name)
    if all(_refuses(driver, _CONTROLLER) for driver in sockets):
        return True
    return any(not driver.asked for driver in unheard) and not any(driver.named for driver in sockets)


def awaits_node_plugin(drivers: Sequence[Driver], name: str) -> bool:
    sockets = _of_name(drivers, name)
    return any(driver.node_plugin_is_elsewhere for driver in sockets) and _refuses(_foremost(sockets, NODE)[0], NODE)


def sole_node_plugin(drivers: Sequence[Driver], name: str) -> Driver | None:
    """Return the one unnamed socket of a driver that serves Node; None if there is none or more than one."""
    found = _foremost(_of_name(drivers, name), NODE)
    return found[0] if len(found) == 1 and not found[0].named and not _refuses(found[0], NODE) else None


def has_topology(drivers: Sequence[Driver], name: str, with_topology: Collection[str]) -> bool:
    """Whether a driver has a topology of its own, as far as is known. The drivers `with_topology` had one before."""
    unheard = any(driver.named and driver.report is None for driver in drivers) or awaits_node_plugin(drivers, name)
    return any(map(_announces_topology, _of_name(drivers, name))) or (name in with_topology and unheard)


def _merged(name: str, sockets: Sequence[Driver], *, own_topology: bool) -> DriverReport:
    answers: dict[str, Answer] = {}
    for method in REPORTED_METHODS:
        service = _service_of(method)
        driver = _foremost(sockets, service)[0]
        answer = _answer(driver, method)
        if answer is not None and not (service == NODE and _refuses(driver, NODE)):
            answers[method] = answer
    said = answers.get(GET_PLUGIN_CAPABILITIES)
    if said is not None and own_topology and not announces_topology(said.body):
        answers[GET_PLUGIN_CAPABILITIES] = replace(said, body=announcing_topology(said.body))
    return DriverReport(name, sockets[0].node, answers, _foremost(sockets, _CONTROLLER)[0].away)


def _by_name(drivers: Iterable[Driver]) -> dict[str, list[Driver]]:
    found: dict[str, list[Driver]] = {}
    for driver in drivers:
        if driver.report is not None:
            found.setdefault(driver.report.driver, []).append(driver)
    return found


def _of_name(drivers: Iterable[Driver], name: str) -> list[Driver]:
    return [driver for driver in drivers if driver.report is not None and driver.report.driver == name]


def _foremost(sockets: Sequence[Driver], service: str) -> Sequence[Driver]:
    if len(sockets) == 1:
        return sockets
    ranks = [_rank(driver, service) for driver in sockets]
    return [driver for driver, rank in zip(sockets, ranks, strict=True) if rank == max(ranks)]


def _rank(driver: Driver, service: str) -> tuple[bool, ...]:
    if service == NODE:
        return (not _refuses(driver, NODE), not driver.named)
    accepted = (not _refuses(driver, it) for it in (_CONTROLLER, service))
    announced = (_announces(driver, it) for it in (service, _CONTROLLER))
    return (*accepted, *announced, driver.named)


def _part_of(service: str) -> str:
    return NODE if service == NODE else _CONTROLLER


def _refuses(driver: Driver, service: str) -> bool:
    if service == NODE and driver.node_plugin_is_elsewhere:
        return True
    answer = _answer(driver, _ASKED.get(service, ""))
    return answer is not None and answer.code == Code.UNIMPLEMENTED


def _announces(driver: Driver, service: str) -> bool:
    answer = _answer(driver, GET_PLUGIN_CAPABILITIES)
    said = GetPluginCapabilitiesResponse.FromString(answer.body if answer is not None else b"").capabilities
    announced = {it.service.type for it in said if it.WhichOneof("type") == "service"}
    return _ANNOUNCED.get(service) in announced


def _announces_topology(driver: Driver) -> bool:
    answer = _answer(driver, GET_PLUGIN_CAPABILITIES)
    return answer is not None and announces_topology(answer.body)


def _answer(driver: Driver, method: str) -> Answer | None:
    return driver.report.answers.get(method) if driver.report is not None else None


def _service_of(method: str) -> str:
    # `/csi.v1.Controller/CreateVolume` → `Controller`
    return method.removeprefix(PREFIX).partition("/")[0]


def _ambiguous(name: str, node: str, found: Collection[Driver]) -> CallError:
    sockets = ", ".join(str(driver.socket) for driver in found)
    return CallError(
        f"edge node {node} has {len(found)} drivers with the name {name}: {sockets}; if one of them is the controller, "
        f"name only its socket with the agent's --driver; otherwise stop one of them",
        is_unsent=True,
    )
