"""The server: every service on one UNIX socket (CSI spec, Connectivity)."""

import asyncio
import contextlib
import errno
import logging
import signal
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

import grpc

from common.csi.methods import METHODS, PREFIX
from examples.dirdriver.settings import SettingsError
from tests.kit.testdriver.attachments import Attachments
from tests.kit.testdriver.call_log import CallLog
from tests.kit.testdriver.calls import Calls, Routes
from tests.kit.testdriver.driver import Driver
from tests.kit.testdriver.faults import Faults
from tests.kit.testdriver.groups import Groups
from tests.kit.testdriver.health import ControllerHealth, NodeHealth
from tests.kit.testdriver.identity import Identity
from tests.kit.testdriver.inventory import Inventory
from tests.kit.testdriver.metadata import Metadata
from tests.kit.testdriver.node import Node
from tests.kit.testdriver.publications import Publications
from tests.kit.testdriver.settings import Settings
from tests.kit.testdriver.snapshots import Snapshots
from tests.kit.testdriver.stagings import Stagings
from tests.kit.testdriver.volumes import Volumes

log = logging.getLogger("dirdriver")

STOP_GRACE_S = 5.0
"""How long calls may go on after SIGTERM: below the 10 s that a container runtime waits before it kills."""


class Part(Protocol):
    """A part of a service."""

    def routes(self) -> Routes:
        """Its methods."""


def services(driver: Driver) -> dict[str, Sequence[Part]]:
    """Each service of csi.proto, and what it is made of."""
    return {
        "Identity": [Identity(driver.settings)],
        "Controller": [
            Inventory(driver),
            Volumes(driver),
            Attachments(driver),
            Snapshots(driver),
            ControllerHealth(driver),
        ],
        "GroupController": [Groups(driver)],
        "SnapshotMetadata": [Metadata(driver)],
        "Node": [Node(driver), Stagings(driver), Publications(driver), NodeHealth(driver)],
    }


def generic_handler(service: str, parts: Sequence[Part], calls: Calls) -> grpc.GenericRpcHandler:
    """One service as gRPC wants it: bytes to messages, handlers with everything round them."""
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
    for part in parts:
        for name, work in part.routes().items():
            method = METHODS[f"{PREFIX}{service}/{name}"]
            if method.streaming:
                make, handler = grpc.unary_stream_rpc_method_handler, calls.stream(name, work)
            else:
                make, handler = grpc.unary_unary_rpc_method_handler, calls.unary(name, work)
            handlers[name] = make(handler, method.request.FromString, method.response.SerializeToString)
    return grpc.method_handlers_generic_handler(f"{PREFIX.strip('/')}{service}", handlers)


async def serve(settings: Settings) -> None:
    """Run the driver until SIGTERM or SIGINT; a second one ends it at once.

    Raises:
        SettingsError: something cannot be used; the message names the flag.
    """
    driver = Driver(settings)
    try:
        call_log = _open_call_log(settings)
        faults = Faults(settings.faults, settings.fault_file or settings.state_dir / "faults")
        calls = Calls(faults=faults, call_log=call_log)
        server = grpc.aio.server()
        server.add_generic_rpc_handlers(
            [generic_handler(service, parts, calls) for service, parts in services(driver).items()]
        )
        _listen(server, settings.socket_path)
        await server.start()
        log.info("%s listens on %s as node %s", settings.driver_name, settings.socket_path, settings.node_id)
        await _stop_signal()
        log.info("stopping; mounts and devices of pods stay")
        await server.stop(STOP_GRACE_S)
        if not await calls.close(patience_s=STOP_GRACE_S):
            log.warning("some work did not end in time and is cut off; the next start puts it right")
        call_log.close()
    finally:
        driver.close()


def _open_call_log(settings: Settings) -> CallLog:
    try:
        return CallLog(settings.call_log)
    except OSError as error:
        raise SettingsError("--call-log", f"cannot be written: {error}") from error


def _listen(server: grpc.aio.Server, path: Path) -> None:
    free_socket(path)
    try:
        server.add_insecure_port(f"unix:{quote(str(path))}")  # an address is a URI to grpcio
    except RuntimeError as error:  # grpcio's only word for every failure to bind
        raise SettingsError("--endpoint", f"cannot listen on {path}; may this user write there?") from error


def free_socket(path: Path) -> None:
    """Remove the socket that an ended process has left.

    Raises:
        SettingsError: a process answers on it, it is another kind of file, or its directory does not exist.
    """
    if not path.parent.is_dir():
        raise SettingsError("--endpoint", f"the directory {path.parent} does not exist")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno != errno.ECONNREFUSED or not path.is_socket():
                raise SettingsError("--endpoint", f"{path} cannot be used: {error.strerror}") from error
            path.unlink()
            return
    raise SettingsError("--endpoint", f"another process answers on {path}; stop it, or choose another path")


async def _stop_signal() -> None:
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    await stopped.wait()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.remove_signal_handler(number)
        with contextlib.suppress(ValueError):
            signal.signal(number, signal.SIG_DFL)
