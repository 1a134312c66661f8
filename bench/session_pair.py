"""A session pair: two sessions that pass calls to each other through bytes, without I/O.

    python bench/session_pair.py         microseconds and function calls a call

Only `Pair` and its two ends know the session's interface.
"""

import cProfile
import gc
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench.chain import Command  # noqa: E402  # a script outside the packages
from bench.figure import Figure, of_samples  # noqa: E402
from bench.spread import repeat  # noqa: E402
from common.csi import csi_pb2  # noqa: E402
from common.messages import Kind, Open  # noqa: E402
from common.observe.version import introduce  # noqa: E402
from common.session.limits import Limits  # noqa: E402
from common.session.receiver import Receiver  # noqa: E402
from common.session.session import Session, SessionState  # noqa: E402
from common.status import Code, Status  # noqa: E402
from tests.kit.requests import create  # noqa: E402

_REQUEST = create("load-1234-17a8f4e0b2c3d4e5-1").SerializeToString()
_ANSWER = csi_pb2.CreateVolumeResponse(volume=csi_pb2.Volume(volume_id="v" * 29)).SerializeToString()
_METHOD = "/csi.v1.Controller/CreateVolume"
_OK = Status(Code.OK)
_CALL_ID = "0123456789abcdef"
_TIMEOUT_S = 10.0
_MOST_US = 50.0


class _Way:
    """A session's way out, always free; `_carry` takes what was written."""

    is_free = True

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def flush_soon(self) -> None: ...

    def flush_later(self) -> None: ...


class _End(Session, Receiver):
    """One side: its session, and the receiver of its streams. It gives credit back at once."""

    def __init__(self, role: str, name: str, *, dialler: bool) -> None:
        self.way = _Way()
        hello = introduce(role, name, instance=role)
        super().__init__(hello, dialler=dialler, limits=Limits(), clock=lambda: 0.0, writer=self.way)
        self.stream = 0

    def on_hello(self) -> None:
        if self.state is SessionState.DECIDING:
            self.accept(1)

    def on_call(self, frame: Open, _deadline: float | None, request: bytes) -> "_End":
        """The agent's side: it answers the request."""
        self.stream = frame.stream
        self.consumed(frame.stream, len(request))
        self.end(frame.stream, _OK, _ANSWER)
        return self

    def ended(self, _status: Status, message: bytes | None) -> None:
        """The hub's side: it acknowledges the answer."""
        assert message is not None
        self.consumed(self.stream, len(message))
        self.acknowledge(self.stream, delivered=True)

    def on_fault(self, error: Exception) -> None:
        raise error


class Pair:
    """A hub's session and an agent's, open, with their default limits. Time stands still."""

    def __init__(self) -> None:
        self._hub = _End("hub", "hub", dialler=False)
        self._agent = _End("edge", "n1", dialler=True)
        _carry(self._agent, self._hub)
        _carry(self._hub, self._agent)

    def call(self) -> None:
        """Pass one call: Open and request, answer and End, Ack."""
        self._hub.stream = self._hub.start(
            self._hub,
            Kind.CALL,
            _REQUEST,
            subject="load.csi-bridge.io",
            method=_METHOD,
            node="n1",
            call=_CALL_ID,
            timeout_s=_TIMEOUT_S,
            is_unary=True,
        )
        _carry(self._hub, self._agent)
        _carry(self._agent, self._hub)
        _carry(self._hub, self._agent)
        assert not self._agent.open_streams


def _carry(source: _End, sink: _End) -> None:
    for data in source.way.written:
        sink.receive(data, 0.0)
    source.way.written.clear()
    while data := source.to_send():
        sink.receive(data, 0.0)


def us_a_call(pair: Pair, *, calls: int = 2_000) -> float:
    """Return the CPU time of a call, in microseconds, over this many calls."""
    began = time.process_time()
    for _ in range(calls):
        pair.call()
    return (time.process_time() - began) / calls * 1e6


def function_calls(pair: Pair, *, calls: int = 200) -> float:
    """Return the number of Python function calls of a call in both sessions."""
    profile = cProfile.Profile(builtins=False)
    gc.disable()  # a collection calls finalizers and weak references' callbacks of others
    profile.enable()
    for _ in range(calls):
        pair.call()
    profile.disable()
    gc.enable()
    counted = sum(entry.callcount for entry in profile.getstats() if not isinstance(entry.code, str))
    return counted / calls


def pair(_directory: Path, _loadgen: Command) -> list[Figure]:
    """Measure the pair."""
    gc.freeze()  # as each process does (cli.process)
    gc.set_threshold(20_000)
    of = Pair()
    us_a_call(of)  # warm
    times = repeat(lambda: {"us": us_a_call(of)}, limit_s=20.0)["us"]
    steps = Figure("session pair without I/O: Python function calls", f"{function_calls(of):.0f} a call")
    steps.samples, steps.blur = [function_calls(of)], 0.01
    return [of_samples("session pair without I/O", times, "us a call", at_most=_MOST_US, digits=1), steps]


if __name__ == "__main__":
    for figure in pair(Path(), ()):
        print(f"{figure.name}: {figure.measured}")
