"""The gRPC server: all services on one UNIX socket (CSI spec, Connectivity).

A handler is a blocking function: it takes a request and returns an answer, or raises `CsiError`. A handler never
learns that its caller is gone: CSI has no cancel, so the work goes on, and the caller's retry finds it done.
"""

import logging
import signal
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote
from weakref import WeakValueDictionary

import grpc

from common.csi.methods import METHODS, PREFIX
from examples.dirdriver.errors import translated
from examples.dirdriver.identity import Identity
from examples.dirdriver.node import Node
from examples.dirdriver.settings import Settings, SettingsError
from examples.dirdriver.snapshots import Snapshots
from examples.dirdriver.store import Store
from examples.dirdriver.volumes import Volumes

log = logging.getLogger("dirdriver")

WORKERS = 128  # calls that run or wait at the same time; gRPC queues all others
STOP_GRACE_S = 5.0  # The time for running calls after SIGTERM. Container runtimes kill after 10 s.

_KEYS = ("name", "volume_id", "snapshot_id")
"""Fields that name the object of a call. The first one in the request counts."""


class Turns:
    """Runs calls on the same object one after the other, so the retry of a slow CreateVolume finds the volume."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()

    def lock(self, request: Any) -> threading.Lock:
        key = next((value for field in _KEYS if (value := getattr(request, field, ""))), "")
        with self._guard:
            return self._locks.setdefault(key, threading.Lock()) if key else threading.Lock()


def generic_handler(service: str, parts: Iterable[object], turns: Turns) -> grpc.GenericRpcHandler:
    """One service, for gRPC. Methods that no part has are UNIMPLEMENTED."""
    handlers = {}
    for path, method in METHODS.items():
        name = path.removeprefix(f"{PREFIX}{service}/")
        for part in parts:
            if work := getattr(part, name, None):
                handlers[name] = grpc.unary_unary_rpc_method_handler(
                    _serving(name, work, turns), method.request.FromString, method.response.SerializeToString
                )
    return grpc.method_handlers_generic_handler(f"{PREFIX.strip('/')}{service}", handlers)


def _serving(method: str, work: Callable[[Any], Any], turns: Turns) -> Callable[[Any, grpc.ServicerContext], Any]:
    def serve(request: Any, context: grpc.ServicerContext) -> Any:
        try:
            with turns.lock(request):
                answer = work(request)
        except Exception as error:  # noqa: BLE001  # every failure becomes a status, here
            failure = translated(method, error)
            log.debug("%s: %s %s", method, failure.code.name, failure.message)
            context.abort(failure.code, failure.message)
        log.debug("%s: OK", method)
        return answer

    return serve


def serve(settings: Settings) -> None:
    """Run the driver until SIGTERM or SIGINT. Raises SettingsError."""
    turns, store = Turns(), Store(settings.state_dir)
    services: dict[str, list[object]] = {  # objects with methods that have the RPCs' names
        "Identity": [Identity(settings)],
        "Controller": [Volumes(settings, store), Snapshots(store)],
        "Node": [Node(settings, store)],
    }
    run(settings, [generic_handler(service, parts, turns) for service, parts in services.items()])


def run(settings: Settings, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
    """Answer calls until SIGTERM or SIGINT. Mounts and loop devices stay: the pods use them."""
    server = grpc.server(ThreadPoolExecutor(WORKERS, "call"))
    server.add_generic_rpc_handlers(handlers)
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    try:
        server.add_insecure_port(f"unix:{quote(str(settings.socket_path))}")  # replaces a socket that a crash left
    except RuntimeError as error:  # grpcio raises it for every failure to bind
        raise SettingsError("--endpoint", f"cannot listen on {settings.socket_path}") from error
    server.start()
    log.info("%s listens on %s as node %s", settings.driver_name, settings.socket_path, settings.node_id)
    stopped.wait()
    log.info("stopping; mounts and devices of pods stay")
    server.stop(STOP_GRACE_S).wait()
