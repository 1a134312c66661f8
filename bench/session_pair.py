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
from common.limits import Limits  # noqa: E402
from common.messages import Kind, Open  # noqa: E402
from common.receiver import Receiver  # noqa: E402
from common.session import Session, State  # noqa: E402
from common.status import Code, Status  # noqa: E402
from common.version import introduce  # noqa: E402
from tests.kit.requests import create  # noqa: E402

_REQUEST = create("load-1234-17a8f4e0b2c3d4e5-1").SerializeToString()
_ANSWER = csi_pb2.CreateVolumeResponse(volume=csi_pb2.Volume(volume_id="v" * 29)).SerializeToString()
_METHOD = "/csi.v1.Controller/CreateVolume"
_OK = Status(Code.OK)
_CALL_ID = "0123456789abcdef"
_TIMEOUT_S = 10.0
_MOST_US = 50.0


class _End(Receiver):
    """One side's application, and the receiver of its streams. It gives each message's credit back at once."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.stream = 0
        session.application = self

    def took(self, message: bytes) -> None:
        self.session.consumed(self.stream, len(message))

    def on_hello(self) -> None:
        if self.session.state is State.DECIDING:
            self.session.accept()

    def on_open(self, frame: Open, _deadline: float | None) -> "_End":
        self.stream = frame.stream
        return self

    def on_drain(self, message: str) -> None: ...

    def on_fault(self, error: Exception) -> None:
        raise error

    def on_closed(self, reason: str, message: str) -> None: ...


class _Caller(_End):
    """The hub's side: it acknowledges the answer."""

    def ended(self, _status: Status, _message: bytes | None) -> None:
        self.session.acknowledge(self.stream, delivered=True)


class _Callee(_End):
    """The agent's side: it answers the request."""

    def took(self, message: bytes) -> None:
        super().took(message)
        self.session.end(self.stream, _OK, _ANSWER)


class Pair:
    """A hub's session and an agent's, open, with their default limits. Time stands still."""

    def __init__(self) -> None:
        self._hub = Session(introduce("hub", "hub", instance="i-1"), dialler=False, limits=Limits(), now=0.0)
        self._agent = Session(introduce("edge", "n1", instance="i-2"), dialler=True, limits=Limits(), now=0.0)
        self._caller = _Caller(self._hub)
        _Callee(self._agent)
        _carry(self._agent, self._hub)
        _carry(self._hub, self._agent)

    def call(self) -> None:
        """Pass one call: Open and request, answer and End, Ack."""
        self._caller.stream = self._hub.open(
            self._caller,
            Kind.ORDER,
            _REQUEST,
            now=0.0,
            subject="load.csi-bridge.io",
            method=_METHOD,
            node="n1",
            call=_CALL_ID,
            timeout_s=_TIMEOUT_S,
        )
        _carry(self._hub, self._agent)
        _carry(self._agent, self._hub)
        _carry(self._hub, self._agent)
        assert not self._agent.open_streams


def _carry(source: Session, sink: Session) -> None:
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
