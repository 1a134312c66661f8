"""What an agent makes of a call before a driver sees it. The drivers and the stream are fakes."""

from __future__ import annotations

from typing import Any

import pytest

from common.errors import NotCarried
from common.messages import Kind, Open
from common.metrics import Metrics
from edge.agent import Agent
from edge.operations import Operations


class FakeStream:
    """A stream that the hub opened."""

    def __init__(self, kind: int, method: str) -> None:
        self.opened = Open(2, kind, 1, "d.example", method, "n1", "c1", 0)

    async def receive(self) -> bytes:
        return b""

    def remaining_s(self) -> float | None:
        return None


class NoStreams:
    """Nothing else uses the link."""

    def up(self, link: Any) -> None:
        pass

    def down(self) -> None:
        pass


def agent() -> Agent:
    return Agent("n1", Operations(600.0, "n1"), Metrics(), drivers=tuple, streams=NoStreams())


@pytest.mark.parametrize("method", ["/grpc.health.v1.Health/Check", "/csi.v0.Node/NodePublishVolume", ""])
async def test_what_is_no_method_of_csi_is_not_called(method: str) -> None:
    stream: Any = FakeStream(Kind.CALL, method)
    with pytest.raises(NotCarried, match="only methods of CSI"):
        await agent().serve(stream)
