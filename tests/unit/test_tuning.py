"""The options of a link's TCP connection."""

from __future__ import annotations

import asyncio

from common.limits import Limits
from common.tcp import tune


class ClosedTransport(asyncio.Transport):
    """A transport of uvloop's that has closed: it has no socket any more."""


def test_a_connection_that_has_closed_meanwhile_is_left_alone() -> None:
    tune(ClosedTransport(), Limits())
