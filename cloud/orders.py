"""The operators' orders: `forget` and `trust`. Each changes the hub's records at an operator's word."""

import asyncio
import json
import logging

from cloud.edge_nodes import Nodes
from cloud.losses import Losses
from cloud.node_calls import NodeCalls
from cloud.placement.placement import Placement
from cloud.report_streams import ReportStreams
from cloud.sync_part import Sync
from common.errors import OperatorRefused
from common.link import Stream
from common.status import Code, Origin, Status

log = logging.getLogger("csi_bridge.hub")


class Orders:
    """Serves the orders of operators."""

    def __init__(
        self,
        nodes: Nodes,
        placement: Placement,
        reports: ReportStreams,
        sync: Sync,
        *,
        calls: NodeCalls,
        losses: Losses,
    ) -> None:
        """For one hub.

        Args:
            nodes: the nodes and their drivers.
            placement: the names and ids that nodes have.
            reports: the watches that may have something to send after `trust`.
            sync: the facts that nodes have told.
            calls: the failed calls of nodes.
            losses: the lost reports of nodes.
        """
        self._nodes = nodes
        self._placement = placement
        self._reports = reports
        self._sync = sync
        self._calls = calls
        self._losses = losses

    async def serve_forget(self, stream: Stream) -> None:
        """Forget a node that is gone for good, or one driver of it."""
        assert stream.opened is not None
        node, driver = stream.opened.node, stream.opened.subject
        left = await self._placement.knows(node, driver) or (not driver and self._sync.knows(node))
        if self._nodes.knows(node, driver) or not left:  # else an earlier order failed halfway: go on there
            self._nodes.forget(node, driver)
        await self._placement.forget(node, driver)
        if not driver:
            self._calls.forget(node)
            if not self._nodes.knows(node):  # it may have come back by now, and tell new facts
                await self._forget_facts(node)
        log.warning(
            "an operator let the hub forget %s", f"driver {driver} of node {node}" if driver else f"node {node}"
        )
        stream.end(Status(Code.OK, origin=Origin.HUB))

    async def _forget_facts(self, node: str) -> None:
        try:
            await self._sync.forget(node)
        except OSError as error:
            raise OperatorRefused(
                f"edge node {node} is forgotten, but not its facts", f"its files cannot be removed: {error}"
            ) from error

    async def serve_trust(self, stream: Stream) -> None:
        """Settle all losses: the hub knows all nodes and their drivers again."""
        try:
            cleared = [
                *await asyncio.to_thread(self._losses.clear),
                *await self._placement.claims.trust(),
            ]
        except OSError as error:
            raise OperatorRefused(
                "csi-bridge trust has no effect", f"the decision cannot be written to the disk: {error}"
            ) from error
        for line in cleared:
            log.warning("an operator ran csi-bridge trust, and this loss no longer counts: %s", line)
        self._reports.look_again()
        await stream.send(json.dumps({"lost": cleared}).encode())
        stream.end(Status(Code.OK, origin=Origin.HUB))
