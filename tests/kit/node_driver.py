"""A driver's node service in this process. It records its calls, and works or fails as a test says."""

import errno
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.csi.methods import METHODS
from common.errors import CallTimeout
from common.status import Code, Status
from edge.calls.driver_call import lease_over


@dataclass
class ScriptedDriver:
    """A node driver whose targets are plain directories and files."""

    name: str = "d.csi"
    node_id: str = "n1-at-the-vendor"
    capabilities: frozenset[int] = frozenset({1, 2, 3})
    # Answers of methods that shall not work: a code with its text, or an error to raise.
    answers: dict[str, tuple[Code, str] | Exception] = field(default_factory=dict)
    # Called during a method with its request, to look at the disk at that moment.
    meanwhile: dict[str, Callable[[Any], None]] = field(default_factory=dict)
    calls: list[tuple[str, Any]] = field(default_factory=list)  # the methods and requests, in order
    responses: dict[str, bytes] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)  # methods that answer OK and do nothing

    async def call(
        self, method: str, request: bytes, *, timeout_s: float, may_begin: Callable[[], bool] | None = None
    ) -> tuple[Status, bytes | None]:
        """Record the call, and answer it."""
        assert timeout_s > 0
        if may_begin is not None and not may_begin():
            raise lease_over(self.name, "n1")
        name = method.rpartition("/")[2]
        message: Any = METHODS[method].request.FromString(request)
        self.calls.append((name, message))
        if name in self.meanwhile:
            self.meanwhile[name](message)
        answer = self.answers.get(name)
        if isinstance(answer, Exception):
            raise answer
        if answer is not None:
            return Status(*answer), None
        if name not in self.broken:
            self._do(name, message)
        return Status(Code.OK), self.responses.get(name, b"")

    def _do(self, name: str, request: Any) -> None:
        if name == "NodePublishVolume":
            target = Path(request.target_path)
            if request.volume_capability.HasField("block"):
                target.touch()
            else:
                target.mkdir(exist_ok=True)
        elif name == "NodeUnpublishVolume":
            target = Path(request.target_path)
            try:
                target.unlink()
            except OSError as error:
                if error.errno == errno.EISDIR:
                    target.rmdir()

    @property
    def methods(self) -> list[str]:
        """The names of the called methods, without `Node` and `Volume`."""
        return [name.removeprefix("Node").removesuffix("Volume") for name, _ in self.calls]

    def last(self, method: str) -> Any:
        """Return the last request of a method."""
        return next(request for name, request in reversed(self.calls) if name == method)


NO_ANSWER = CallTimeout("driver d.csi")  # the error of a call whose time is up
