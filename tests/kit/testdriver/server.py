"""The server: every service on one UNIX socket (CSI spec, Connectivity)."""

from collections.abc import Sequence
from typing import Any

import grpc

from common.csi.methods import METHODS, PREFIX
from examples.dirdriver.server import run
from tests.kit.testdriver.call_log import CallLog
from tests.kit.testdriver.calls import Calls
from tests.kit.testdriver.controller import Driver, Identity, Volumes
from tests.kit.testdriver.faults import Faults
from tests.kit.testdriver.health import Health
from tests.kit.testdriver.metadata import SnapshotMetadata
from tests.kit.testdriver.node import Node
from tests.kit.testdriver.settings import Settings
from tests.kit.testdriver.snapshots import Snapshots


def services(driver: Driver) -> dict[str, list[object]]:
    snapshots, health = Snapshots(driver), Health(driver.state)
    for_nodes: dict[str, list[object]] = {"Identity": [Identity(driver.settings)], "Node": [Node(driver), health]}
    if not driver.settings.controller:
        return for_nodes
    return {
        **for_nodes,
        "Controller": [Volumes(driver), snapshots, health],
        "GroupController": [snapshots],
        "SnapshotMetadata": [SnapshotMetadata(driver.state)],
    }


def switched_off(settings: Settings) -> set[str]:
    """The methods that a switch turned off: gRPC answers UNIMPLEMENTED."""
    switches = {
        "ControllerPublishVolume": settings.attach,
        "ControllerUnpublishVolume": settings.attach,
        "ControllerModifyVolume": bool(settings.mutable_parameters),
        "NodeStageVolume": settings.stage,
        "NodeUnstageVolume": settings.stage,
    }
    return {method for method, on in switches.items() if not on}


def generic_handler(service: str, parts: Sequence[object], calls: Calls, off: set[str]) -> grpc.GenericRpcHandler:
    """One service as gRPC wants it: bytes to messages, handlers with everything round them."""
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
    for path, method in METHODS.items():
        name = path.removeprefix(f"{PREFIX}{service}/")
        work = next((getattr(part, name) for part in parts if hasattr(part, name)), None)
        if work is None or name in off:
            continue
        made, serve = (
            (grpc.unary_stream_rpc_method_handler, calls.stream(name, work))
            if method.streaming
            else (grpc.unary_unary_rpc_method_handler, calls.unary(name, work))
        )
        handlers[name] = made(serve, method.request.FromString, method.response.SerializeToString)
    return grpc.method_handlers_generic_handler(f"{PREFIX.strip('/')}{service}", handlers)


def serve(settings: Settings) -> None:
    """Run the driver until SIGTERM or SIGINT."""
    driver = Driver(settings)
    faults = Faults(settings.faults, settings.fault_file or settings.state_dir / "faults")
    calls = Calls(faults=faults, call_log=CallLog(settings.call_log))
    off = switched_off(settings)
    run(settings, [generic_handler(*each, calls, off) for each in services(driver).items()])
