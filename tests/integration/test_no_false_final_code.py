"""A final code reaches the sidecar only if the vendor sent it; all else is UNAVAILABLE and names the driver.

Sidecars take all but a few codes as proof that nothing exists at the driver: an invented one leaks a volume
(docs/csi-contract.md#a-final-code-makes-a-sidecar-forget).
"""

import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jh2.errors import ErrorCodes

from common.csi import csi_pb2
from common.status import Code
from tests.integration.conftest import DRIVER
from tests.kit.answers import volume
from tests.kit.bridge import Bridge
from tests.kit.failing_vendor import ITS_CODES, ITS_WORDS
from tests.kit.forms import in_each_form, slow_in_hub
from tests.kit.processes import Supervisor, listens_on
from tests.kit.requests import create
from tests.kit.sidecar import Sidecar
from tests.kit.wire_vendor import Wire, WireVendor

_KILLS = 200
_CALLERS = 8

_GRPC = (("content-type", "application/grpc"),)


@pytest.fixture(scope="module")
def broken(
    module_dir: Path, tmp_path_factory: pytest.TempPathFactory, *, in_hub: bool
) -> Iterator[tuple[WireVendor, Sidecar]]:
    """A vendor that can break gRPC's rules, and a sidecar with a bridge between them."""
    with (
        WireVendor(module_dir / "vendor.sock") as vendor,
        Bridge(module_dir, tmp_path_factory.mktemp("logs"), serves=DRIVER if in_hub else "") as bridge,
    ):
        bridge.start_hub()
        bridge.start_agent("n1", vendor.socket)
        sidecar = bridge.start_proxy("vendor.test").sidecar()
        bridge.wait_routed(sidecar)
        yield vendor, sidecar


Step = Callable[[Wire], None]

_VOLUME = volume("v").SerializeToString()
_GARBAGE = b"\xff\xff\xff this is no protobuf"


def _steps(*each: Step) -> Step:
    def script(wire: Wire) -> None:
        for step in each:
            step(wire)

    return script


def _reset(code: int) -> Step:
    return lambda wire: wire.reset(code)


def _message(payload: bytes = _VOLUME, **how: Any) -> Step:
    return lambda wire: wire.message(payload, **how)


def _trailers(*fields: tuple[str, str]) -> Step:
    return lambda wire: wire.trailers(*fields)


def _library_words(code: Code, message: str) -> Step:
    return _trailers((":status", "200"), *_GRPC, ("grpc-status", str(int(code))), ("grpc-message", message))


def _html(wire: Wire) -> None:
    wire.headers(content_type="text/html")


def _no_http2(wire: Wire) -> None:
    wire.raw(b"HTTP/1.1 500 Internal Server Error\r\n\r\n" * 4)


_CUT = _message(b"x" * 10, claims=100)
_OK = _trailers(("grpc-status", "0"))

BROKEN: dict[str, Step] = {
    **{
        f"reset with {code.name}": _reset(code)
        for code in (
            ErrorCodes.NO_ERROR,
            ErrorCodes.INTERNAL_ERROR,
            ErrorCodes.CANCEL,
            ErrorCodes.REFUSED_STREAM,
            ErrorCodes.ENHANCE_YOUR_CALM,
        )
    },
    "reset in the middle of a message": _steps(Wire.headers, _CUT, _reset(ErrorCodes.INTERNAL_ERROR)),
    "connection closed": Wire.hang_up,
    "connection closed in the middle of a message": _steps(Wire.headers, _CUT, Wire.hang_up),
    "no trailers": _steps(Wire.headers, _message(end=True)),
    "nothing but headers": lambda wire: wire.headers(end=True),
    "trailers without a status": _steps(Wire.headers, _message(), _trailers(("x-nothing", "here"))),
    "a status that is no number": _steps(Wire.headers, _trailers(("grpc-status", "INTERNAL"))),
    "a page of HTML": _steps(_html, lambda wire: wire.data(b"<h1>It works!</h1>", end=True)),
    "a page of HTML with a gRPC status": _steps(_html, _trailers(("grpc-status", "5"), ("grpc-message", "gone"))),
    "HTTP 404": lambda wire: wire.headers(status="404", end=True),
    "two messages": _steps(Wire.headers, _message(), _message(volume("w").SerializeToString()), _OK),
    "OK without a message": _steps(Wire.headers, _OK),
    "OK after a cut message": _steps(Wire.headers, _CUT, _OK),
    "a compressed message": _steps(Wire.headers, _message(compressed=True), _OK),
    "a message that does not parse": _steps(Wire.headers, _message(_GARBAGE), _OK),
    "bytes that are no HTTP/2": _no_http2,
    "GOAWAY before the call": _steps(lambda wire: wire.goaway(ErrorCodes.NO_ERROR, 0), Wire.hang_up),
    "the size limit of grpc-go": _library_words(
        Code.RESOURCE_EXHAUSTED, "grpc: received message larger than max (5000000 vs. 4194304)"
    ),
    "the size limit of grpcio": _library_words(
        Code.RESOURCE_EXHAUSTED, "SERVER: Received message larger than max (5000000 vs. 4194304)"
    ),
    **{
        f"{code.name} from a driver that dies": _steps(_library_words(code, "Stream removed"), Wire.hang_up)
        for code in (Code.UNKNOWN, Code.INTERNAL, Code.CANCELLED, Code.RESOURCE_EXHAUSTED)
    },
}


@slow_in_hub
@pytest.mark.parametrize("what", BROKEN)
def test_what_is_no_answer_of_the_vendors_is_unavailable_and_names_the_driver(
    broken: tuple[WireVendor, Sidecar], what: str, name: str
) -> None:
    vendor, sidecar = broken
    vendor.on("CreateVolume", BROKEN[what])
    refusals = [sidecar.call("CreateVolume", create(name)).refusal for _ in range(2)]
    vendor.as_usual("CreateVolume")
    # Of a driver that dies, the agent sees the status first, or the end of the connection.
    for code, message in refusals:
        assert code is Code.UNAVAILABLE, message
        assert message.startswith("driver vendor.test on edge node n1: ")
        assert message.endswith("; look at the driver's log there")
    assert sidecar.call("CreateVolume", create(name)).answer == volume(name)


@slow_in_hub
@pytest.mark.parametrize("code", [Code.UNKNOWN, Code.INTERNAL, Code.CANCELLED, Code.RESOURCE_EXHAUSTED])
def test_a_dying_drivers_code_is_believed_if_the_driver_lives(
    broken: tuple[WireVendor, Sidecar], code: Code, name: str
) -> None:
    vendor, sidecar = broken
    vendor.on("CreateVolume", _library_words(code, "the pool is degraded"))
    refusal = sidecar.call("CreateVolume", create(name)).refusal
    vendor.as_usual("CreateVolume")
    assert refusal == (code, "the pool is degraded")


BROKEN_OFF: dict[str, Step] = {
    "reset with NO_ERROR": _reset(ErrorCodes.NO_ERROR),
    "reset with CANCEL": _reset(ErrorCodes.CANCEL),
    "connection closed": Wire.hang_up,
    "no trailers": lambda wire: wire.data(b"", end=True),
    "trailers without a status": _trailers(("x-nothing", "here")),
    "OK after a cut message": _steps(_CUT, _OK),
    "a message that does not parse": _steps(_message(_GARBAGE), _OK),
    "bytes that are no HTTP/2": _no_http2,
}


@slow_in_hub
@pytest.mark.parametrize("what", BROKEN_OFF)
def test_a_stream_that_the_vendor_breaks_off_is_unavailable_and_never_a_clean_end(
    broken: tuple[WireVendor, Sidecar], what: str
) -> None:
    vendor, sidecar = broken
    first = _message(csi_pb2.GetMetadataAllocatedResponse(volume_capacity_bytes=1).SerializeToString())
    vendor.on("GetMetadataAllocated", _steps(Wire.headers, first, BROKEN_OFF[what]))
    outcomes = [sidecar.stream("GetMetadataAllocated").outcome() for _ in range(2)]
    vendor.as_usual("GetMetadataAllocated")
    code, message = outcomes[0].refusal
    assert code is Code.UNAVAILABLE, message
    assert message.startswith("driver vendor.test on edge node n1: ")
    assert message.endswith("; look at the driver's log there")
    assert outcomes[0].refusal == outcomes[1].refusal


@in_each_form
@pytest.mark.slow
def test_a_vendor_killed_at_any_moment_sends_no_final_code_of_ours(bridge: Bridge, short_dir: Path) -> None:
    bridge.start_hub()
    socket = short_dir / "vendor.sock"
    with Supervisor(short_dir / "vendor") as supervisor:
        command = [sys.executable, "-m", "tests.kit.failing_vendor", socket]
        vendor = supervisor.start("vendor", command, ready=lambda: listens_on(socket))
        bridge.start_agent("n1", socket, flags=["--log-level=error"])
        proxy = bridge.start_proxy("vendor.test")
        bridge.wait_routed(proxy.sidecar())
        ended = threading.Event()
        seen: list[Counter[tuple[Code, str]]] = [Counter() for _ in range(_CALLERS)]
        callers = [
            threading.Thread(target=_call_until, args=(ended, proxy.sidecar(), number, seen[number]))
            for number in range(_CALLERS)
        ]
        for caller in callers:
            caller.start()
        for _ in range(_KILLS):
            time.sleep(random.uniform(0, 0.03))
            vendor.kill()
            vendor.start()
            vendor.wait_until(lambda: listens_on(socket))
        ended.set()
        for caller in callers:
            caller.join()
        bridge.wait_routed(proxy.sidecar())

    told = sum(seen, Counter())
    final = {refusal for refusal in told if refusal[0] not in {Code.OK, Code.UNAVAILABLE}}
    assert {message for _, message in final} == {ITS_WORDS}
    assert {code for code, _ in final} <= set(ITS_CODES)
    assert all(message.startswith("driver vendor.test on") for code, message in told if code is Code.UNAVAILABLE)
    assert told[Code.OK, ""] > 0
    assert any("during the call" in message for _, message in told), "no call was under way at any of the kills"


def _call_until(ended: threading.Event, sidecar: Sidecar, caller: int, seen: Counter[tuple[Code, str]]) -> None:
    number = 0
    while not ended.is_set():
        number += 1
        seen[sidecar.call("CreateVolume", create(f"v-{caller}-{number}")).refusal] += 1
