"""The operators' orders. Each changes the hub's records at an operator's word.

They have a name and come on `Kind.ORDER`. Other parts of the hub add theirs to the table (`Orders.add`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from cloud.calls.node_calls import NodeCalls
from cloud.leadership.incarnation import Incarnation
from cloud.nodes.edge_nodes import Nodes
from cloud.parts.sync_part import Sync
from cloud.placement.placement import Placement
from cloud.trust import audit
from cloud.trust.audit import Event
from cloud.trust.credentials import Credentials
from cloud.trust.denials import serial_of
from common.errors import not_carried, order_refused
from common.operator_orders import Allow, Deny, Done, Forget, Order, Trust
from common.pages.json_form import decode, encode
from common.parsers import is_name
from common.session.link import Stream
from common.status import Code, Origin, Status

log = logging.getLogger("csi_bridge.hub")

Given = TypeVar("Given", bound=Order)

# Carries out an order of the operator at an address (`pid 7 uid 0`). Returns a dataclass or raises CallError.
CarryOut = Callable[[Given, str], Awaitable[object]]

_PIECE_BYTES = 32 * 1024  # A longer answer goes in several messages: no link refuses one of this size (`--max-message`)


class Orders:
    """Serves the orders of operators."""

    def __init__(
        self,
        nodes: Nodes,
        placement: Placement,
        sync: Sync,
        trust: Credentials,
        *,
        calls: NodeCalls,
        incarnation: Incarnation,
    ) -> None:
        self._nodes = nodes
        self._placement = placement
        self._sync = sync
        self._trust = trust
        self._calls = calls
        self._incarnation = incarnation
        self._named: dict[str, tuple[type[Order], CarryOut[Any]]] = {}
        self.add(Forget, self._forget)
        self.add(Trust, self._settle_losses)
        self.add(Deny, self._deny)
        self.add(Allow, self._allow)

    def add(self, order: type[Given], carry_out: CarryOut[Given]) -> None:
        """Serve the orders of a dataclass (`common.operator_orders`) by a function."""
        self._named[order.order] = (order, carry_out)

    async def serve_order(self, stream: Stream) -> None:
        """Carry out an order by its name. Raises CallError."""
        assert stream.opened is not None
        name = stream.opened.method
        if name not in self._named:
            raise not_carried(f"the order {name!r}", "this hub does not know it; use the csi-bridge of its version")
        order, carry_out = self._named[name]
        try:
            arguments = decode(await stream.receive() or b"", order)
        except ValueError as error:
            raise order_refused(f"the order {name} is not carried out", str(error)) from error
        stream.detach()  # an operator who leaves does not cut it in the middle
        answer = await carry_out(arguments, stream.link.peer_identity.address)
        text = await asyncio.to_thread(encode, answer)  # a long answer would hold up the loop
        *pieces, last = [text[at : at + _PIECE_BYTES] for at in range(0, len(text), _PIECE_BYTES)]
        for piece in pieces:
            await stream.send(piece)
        stream.end(Status(Code.OK, origin=Origin.HUB), last)

    async def _deny(self, order: Deny, by: str) -> Done:
        # `forget` does not undo it.
        said = [await self._trust.denials.deny(order, by)]
        if is_name(order.subject) and not self._nodes.knows(order.subject):
            said.append(f"the hub knows no edge node {order.subject} yet")
        node, asked = self._trust.generations.outlived_by(serial_of(order.subject))
        if node:
            later = f"a later certificate ({asked})" if asked else "a later certificate"
            said.append(f"edge node {node} has {later}, which counts; csi-bridge deny {node} ends that one, too")
        return Done(said=said)

    async def _allow(self, order: Allow, by: str) -> Done:
        said = [await self._trust.denials.allow(order, by)]
        if self._trust.generations.settle(order.subject):
            said.append(f"the replaced certificate of edge node {order.subject} is shown no longer, and stays refused")
        if not any(said):
            raise order_refused(f"{order.subject} is not allowed", "it is not denied")
        return Done(said=[line for line in said if line])

    async def _forget(self, order: Forget, by: str) -> Done:
        node = order.node
        driver = order.driver
        audit.add(Event.ORDER, who="operator", address=by, order="forget", node=node, driver=driver)
        left = self._placement.claims.knows(node, driver) or (not driver and self._sync.knows(node))
        if self._nodes.knows(node, driver) or not left:  # else an earlier order failed halfway: go on there
            self._nodes.forget(node, driver)
        await self._placement.forget(node, driver)
        if not driver:
            self._calls.forget(node)
            if not self._nodes.knows(node):  # it may have come back by now, and tell new facts
                try:
                    await self._sync.forget(node)
                except OSError as error:
                    raise order_refused(
                        f"edge node {node} is forgotten, but not its facts", f"its files cannot be removed: {error}"
                    ) from error
        what = f"{f'driver {driver} of ' if driver else ''}edge node {node}"
        log.warning("an operator let the hub forget %s", what)
        return Done(said=[f"the hub has forgotten {what}"])

    async def _settle_losses(self, _order: Trust, by: str) -> Done:
        audit.add(Event.ORDER, who="operator", address=by, order="trust")
        try:
            cleared = await self._incarnation.trust()
        except OSError as error:
            raise order_refused(
                "csi-bridge trust has no effect", f"the decision cannot be written to the disk: {error}"
            ) from error
        for line in cleared:
            log.warning("an operator ran csi-bridge trust, and this loss no longer counts: %s", line)
        return Done(said=[f"settled: {line}" for line in cleared] or ["the hub had lost nothing"])
