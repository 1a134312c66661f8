"""An operator: asks a hub for its state over its UNIX socket, as JSON."""

import asyncio
import json
from pathlib import Path
from typing import Any

from common.dial import dial
from common.endpoint import Endpoint
from common.limits import Limits
from common.link import Link, Stream
from common.messages import Kind
from common.status import Origin
from common.version import introduce


class _Operator:
    """A link's handler that serves nothing."""

    origin = Origin.PROXY

    def greeted(self, link: Link) -> None: ...
    def draining(self, link: Link, message: str) -> None: ...
    def refused(self, link: Link, reason: str, message: str) -> None: ...
    def closed(self, link: Link, reason: str, message: str) -> None: ...
    async def serve(self, stream: Stream) -> None: ...


def hub_state(uds: Path) -> dict[str, Any]:
    """The hub's state: its nodes and the proxy drivers that are connected."""

    async def ask() -> bytes:
        hello = introduce("operator", "", instance="test")
        link = await dial(Endpoint(f"unix://{uds}", path=uds), hello, _Operator(), limits=Limits())
        stream = link.open(Kind.STATUS)
        try:
            answer = await stream.receive()
            assert answer is not None
            return answer
        finally:
            link.goodbye("done", "asked and answered")
            await link.wait_closed()
            await asyncio.sleep(0.01)  # the transport closes behind its link

    state: dict[str, Any] = json.loads(asyncio.run(ask()))
    return state


def node_state(uds: Path, node: str) -> dict[str, Any]:
    """What the hub says of one node."""
    (found,) = (state for state in hub_state(uds)["nodes"] if state["node"] == node)
    return dict(found)
