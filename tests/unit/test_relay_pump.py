"""A pump's connection ends in time, without a socket: a peer that reads nothing is cut, and one that is gone is not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from common.relay.client_connection import ClientConnection
from tests.kit.waiting import settle

BROKEN = b"\0\0\0\4\0\0\0\0\1"
"""SETTINGS on a stream, which ends the connection."""


class Transport(asyncio.Transport):
    """Takes every byte, and counts its aborts."""

    def __init__(self) -> None:
        super().__init__()
        self.aborts = 0
        self.closing = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """There are none."""

    def write(self, data: Any) -> None:
        """Take it."""

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.aborts += 1


@pytest.mark.parametrize("is_gone", [False, True])
@pytest.mark.parametrize("end", ["shut", "fail"])
async def test_a_connection_that_ends_is_cut_unless_the_peer_has_read_everything(
    end: str, *, is_gone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """asyncio's transport raises if it is aborted after its last byte has left and it has closed."""
    monkeypatch.setattr("common.relay.pump.SHUT_S", 0.0)
    connection, transport = ClientConnection("/d.sock", lambda _: None), Transport()
    connection.connection_made(transport)
    if end == "shut":
        connection.shut()
    else:
        connection.data_received(BROKEN)
    assert transport.closing
    if is_gone:
        connection.connection_lost(None)
    await settle()
    connection.ready.exception() if is_gone else connection.ready.cancel()
    assert transport.aborts == (0 if is_gone else 1)
