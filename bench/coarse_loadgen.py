"""The coarse load generator: `bench/loadgen` in Python, for a machine without Go. It costs more than the bridge.

It has the flags that the bench uses, and prints the same JSON; the Go sources explain both. To load a socket:

    python bench/coarse_loadgen.py run --scenario create-delete --callers 16 --duration 5s --socket direct=unix:///d.sock

To serve a driver:

    python bench/coarse_loadgen.py serve --endpoint unix:///d.sock --delay 350us
"""

import argparse
import asyncio
import itertools
import json
import math
import secrets
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import uvloop
from google.protobuf.message import Message

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from common.csi import csi_pb2  # noqa: E402  # a script outside the packages
from common.csi.methods import METHODS  # noqa: E402
from common.net.sockets import listen_unix  # noqa: E402
from common.parsers import duration, unix_path  # noqa: E402
from common.relay.client import Channel  # noqa: E402
from common.relay.errors import VendorConnectionError  # noqa: E402
from common.relay.server import Server, ServerCall, ServerSettings, in_task  # noqa: E402
from common.status import Code, Origin, Status  # noqa: E402
from tests.kit.answers import Identity, answer_of, path_of  # noqa: E402
from tests.kit.requests import create  # noqa: E402

_DEADLINE_S = 10.0
"""The deadline of each call: csi-provisioner's default."""

_LARGEST_MESSAGE_BYTES = 4 << 20
_CONTROLLER = "/csi.v1.Controller/"
_OPERATION = ""
"""Stands for the whole operation of a scenario, in place of a method's path."""

# ---- operations ------------------------------------------------------------------------------------------------------

Call = Callable[[str, Message], Awaitable[Any]]
Scenario = Callable[[Call, str], Awaitable[object]]


async def _create_delete(call: Call, name: str) -> None:
    created = await call("CreateVolume", create(name))
    await call("DeleteVolume", csi_pb2.DeleteVolumeRequest(volume_id=created.volume.volume_id))


SCENARIOS: dict[str, Scenario] = {
    "create-delete": _create_delete,
    "identity": lambda call, _: call("GetPluginInfo", csi_pb2.GetPluginInfoRequest()),
    "validate": lambda call, name: call(
        "ValidateVolumeCapabilities", csi_pb2.ValidateVolumeCapabilitiesRequest(volume_id=name)
    ),
}


# ---- run -------------------------------------------------------------------------------------------------------------


class _CallFailed(Exception):
    """A call failed and was counted."""


class _Target:
    """One socket under load, and the results of its calls."""

    def __init__(self, path: Path, options: argparse.Namespace) -> None:
        self._channel = Channel(path, max_message_bytes=_LARGEST_MESSAGE_BYTES)
        self._operate = SCENARIOS[options.scenario]
        self._callers, self._duration_s, self._count = options.callers, options.duration, options.count
        self._pause_s = options.pause
        self._names = (f"load-{secrets.token_hex(8)}-{number}" for number in itertools.count())
        self.forget()

    def forget(self) -> None:
        """Start counting."""
        self._began = 0
        self._seconds = 0.0
        self._took_s: dict[str, list[float]] = defaultdict(list)
        self._errors: Counter[str] = Counter()
        self._messages: dict[str, str] = {}

    @property
    def done(self) -> bool:
        """Whether it has had its share of operations."""
        return bool(self._began >= self._count if self._count else self._seconds >= self._duration_s)

    async def turn(self, length_s: float) -> None:
        """Load it with all callers for `length_s` seconds. Calls that have begun are finished."""
        began_s = time.perf_counter()

        async def caller() -> None:
            while time.perf_counter() - began_s < length_s and not self.done:
                self._began += 1
                start_s = time.perf_counter()
                with suppress(_CallFailed):
                    await self._operate(self._call, next(self._names))
                    self._took_s[_OPERATION].append(time.perf_counter() - start_s)

        await asyncio.gather(*(caller() for _ in range(self._callers)))
        self._seconds += time.perf_counter() - began_s

    async def _call(self, method: str, request: Message) -> Any:
        path, data = path_of(method), request.SerializeToString()
        start_s = time.perf_counter()
        try:
            async with asyncio.timeout(_DEADLINE_S):
                status, answer = await self._channel.call(path, data, timeout_s=_DEADLINE_S).unary()
        except TimeoutError:
            status, answer = Status(Code.DEADLINE_EXCEEDED, "no answer in time", Origin.EDGE), None
        except VendorConnectionError as error:
            status, answer = Status(Code.UNAVAILABLE, str(error), Origin.EDGE), None
        if answer is None:
            code = Code(status.code).name
            self._errors[code] += 1
            self._messages[code] = status.message
            raise _CallFailed
        self._took_s[path].append(time.perf_counter() - start_s)
        if self._pause_s:
            await asyncio.sleep(self._pause_s)
        return METHODS[path].response.FromString(answer)

    def report(self) -> dict[str, Any]:
        """Return the report for printing. Times are those of successful calls."""
        operations = self._took_s.pop(_OPERATION, [])
        calls = [took_s for of in self._took_s.values() for took_s in of]
        return {
            "seconds": self._seconds,
            "calls": len(calls),
            "calls_per_second": len(calls) / self._seconds,
            "errors": dict(self._errors),
            "error_messages": self._messages,
            "latency_us": _spread_us(calls),
            "operations": {
                "count": len(operations),
                "per_second": len(operations) / self._seconds,
                "latency_us": _spread_us(operations),
            },
            "methods": {path: {"calls": len(of), "latency_us": _spread_us(of)} for path, of in self._took_s.items()},
        }


def _spread_us(took_s: Sequence[float]) -> dict[str, float]:
    ranked = [took * 1e6 for took in sorted(took_s)] or [0.0]
    spread = {f"p{share}": ranked[math.ceil(share / 100 * len(ranked)) - 1] for share in (50, 90, 99)}
    return {**spread, "max": ranked[-1], "mean": sum(ranked) / len(ranked)}


async def _run(options: argparse.Namespace) -> None:
    targets = {name: _Target(path, options) for name, path in options.socket}
    for target in targets.values():
        await target.turn(options.warm_up)
        target.forget()
    cpu_s = time.process_time()
    while waiting := [target for target in targets.values() if not target.done]:
        for target in waiting:
            await target.turn(options.slice)
    cpu_s = time.process_time() - cpu_s
    reports = {name: target.report() for name, target in targets.items()}
    calls = sum(report["calls"] for report in reports.values())
    cost_us = cpu_s / calls * 1e6 if calls else 0.0
    heading = {"scenario": options.scenario, "callers": options.callers, "loadgen_cpu_us_per_call": cost_us}
    print(json.dumps({**heading, "targets": reports}))


# ---- serve -----------------------------------------------------------------------------------------------------------


async def _serve(options: argparse.Namespace) -> None:
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(64))
    identity = Identity(options.name)

    async def answer(call: ServerCall) -> None:
        if options.delay and call.method.startswith(_CONTROLLER) and not call.method.endswith("GetCapabilities"):
            # In a thread: the loop's own timers count in milliseconds.
            await loop.run_in_executor(None, time.sleep, options.delay)
        await call.send(answer_of(identity, call.method, call.request).SerializeToString())
        call.finish(Status(Code.OK, "", Origin.VENDOR))

    def failed(error: object) -> Status:
        return Status(Code.UNAVAILABLE, repr(error), Origin.VENDOR)

    server = Server(in_task(answer), ServerSettings(_LARGEST_MESSAGE_BYTES, failed))
    await server.listen(listen_unix(options.endpoint, mode=0o600))
    await loop.create_future()


# ---- the command line ------------------------------------------------------------------------------------------------


def _named_socket(text: str) -> tuple[str, Path]:
    name, _, path = text.partition("=")
    return name, unix_path(path)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    run = commands.add_parser("run", help="load sockets in a closed loop, print JSON")
    run.set_defaults(command=_run)
    run.add_argument("--socket", type=_named_socket, action="append", required=True, metavar="NAME=unix:///path")
    run.add_argument("--scenario", choices=sorted(SCENARIOS), default="create-delete")
    run.add_argument("--callers", type=int, default=1)
    run.add_argument("--count", type=int, default=0, help="operations of each socket; 0: by --duration")
    for flag, default in (("--duration", "5s"), ("--slice", "500ms"), ("--warm-up", "300ms"), ("--pause", "0s")):
        run.add_argument(flag, type=duration, default=default)
    driver = commands.add_parser("serve", help="a CSI driver that answers from memory")
    driver.set_defaults(command=_serve)
    driver.add_argument("--endpoint", type=unix_path, required=True)
    driver.add_argument("--name", default="load.csi-bridge.io")
    driver.add_argument("--delay", type=duration, default="0s", help="how long a Controller call takes")
    return parser.parse_args()


if __name__ == "__main__":
    options = _options()
    uvloop.run(options.command(options))
