"""The server: every service on one UNIX socket (CSI spec, Connectivity)."""

import asyncio
import logging
import signal
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import grpc

from common.csi.methods import METHODS, PREFIX
from examples.dirdriver.settings import SettingsError
from tests.kit.testdriver.call_log import CallLog
from tests.kit.testdriver.calls import Calls
from tests.kit.testdriver.controller import Driver, Identity, Volumes
from tests.kit.testdriver.faults import Faults
from tests.kit.testdriver.health import Health
from tests.kit.testdriver.node import Node
from tests.kit.testdriver.settings import Settings
from tests.kit.testdriver.snapshots import Metadata, Snapshots

log = logging.getLogger("dirdriver")

STOP_GRACE_S = 5.0
"""How long calls may go on after SIGTERM: below the 10 s that a container runtime waits before it kills."""


def services(driver: Driver) -> dict[str, list[object]]:
    snapshots, health = Snapshots(driver), Health(driver.state)
    return {
        "Identity": [Identity(driver.settings)],
        "Controller": [Volumes(driver), snapshots, health],
        "GroupController": [snapshots],
        "SnapshotMetadata": [Metadata(driver.state)],
        "Node": [Node(driver), health],
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
        if method.streaming:
            make, handler = grpc.unary_stream_rpc_method_handler, calls.stream(name, work)
        else:
            make, handler = grpc.unary_unary_rpc_method_handler, calls.unary(name, work)
        handlers[name] = make(handler, method.request.FromString, method.response.SerializeToString)
    return grpc.method_handlers_generic_handler(f"{PREFIX.strip('/')}{service}", handlers)


async def serve(settings: Settings) -> None:
    """Run the driver until SIGTERM or SIGINT."""
    driver = Driver(settings)
    try:
        call_log = CallLog(settings.call_log)
        faults = Faults(settings.faults, settings.fault_file or settings.state_dir / "faults")
        calls = Calls(faults=faults, call_log=call_log)
        server = grpc.aio.server()
        off = switched_off(settings)
        server.add_generic_rpc_handlers([generic_handler(*each, calls, off) for each in services(driver).items()])
        try:
            server.add_insecure_port(f"unix:{quote(str(settings.socket_path))}")  # replaces a socket that a crash left
        except RuntimeError as error:  # grpcio raises it for every failure to bind
            raise SettingsError("--endpoint", f"cannot listen on {settings.socket_path}") from error
        await server.start()
        log.info("%s listens on %s as node %s", settings.driver_name, settings.socket_path, settings.node_id)
        stopped = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
        await stopped.wait()
        log.info("stopping; mounts and devices of pods stay")
        await server.stop(STOP_GRACE_S)
        await calls.close(patience_s=STOP_GRACE_S)
        call_log.close()
    finally:
        driver.state.close()
