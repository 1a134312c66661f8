"""What an agent makes of a call before a driver sees it. The drivers and the stream are fakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from common.errors import DriverAmbiguous, DriverMissing, NotCarried
from common.messages import Kind, Open
from common.metrics import Metrics
from common.reports import DriverReport
from edge.agent import Agent
from edge.operations import Operations


class FakeDriver:
    """A driver that has told its name, or not."""

    def __init__(self, name: str, socket: str = "/run/a.sock", *, trouble: str = "") -> None:
        self.report = DriverReport(name, "n1", {}) if name else None
        self.socket = Path(socket)
        self.trouble = trouble


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


def agent(*drivers: Any) -> Agent:
    return Agent("n1", Operations(600.0, "n1"), Metrics(), drivers=lambda: drivers, streams=NoStreams())


def test_a_driver_is_found_by_the_name_that_it_gave() -> None:
    wanted: Any = FakeDriver("d.example")
    assert agent(FakeDriver(""), FakeDriver("e.example"), wanted)._find("d.example") is wanted


def test_a_name_that_no_driver_gave_is_missing() -> None:
    with pytest.raises(DriverMissing):
        agent(FakeDriver("e.example"), FakeDriver(""))._find("d.example")


def test_a_driver_in_trouble_is_found_as_well() -> None:
    gone: Any = FakeDriver("d.example", trouble="connection refused")
    assert agent(gone)._find("d.example") is gone


@pytest.mark.parametrize("trouble", ["", "connection refused"])
def test_two_drivers_of_one_name_are_named_even_if_one_of_them_is_away(trouble: str) -> None:
    with pytest.raises(DriverAmbiguous, match=r"2 drivers that call themselves d.example: /a.sock, /b.sock; give"):
        agent(FakeDriver("d.example", "/a.sock", trouble=trouble), FakeDriver("d.example", "/b.sock"))._find(
            "d.example"
        )


@pytest.mark.parametrize("method", ["/grpc.health.v1.Health/Check", "/csi.v0.Node/NodePublishVolume", ""])
async def test_what_is_no_method_of_csi_is_not_called(method: str) -> None:
    stream: Any = FakeStream(Kind.CALL, method)
    with pytest.raises(NotCarried, match="the methods of CSI alone"):
        await agent(FakeDriver("d.example")).serve(stream)
