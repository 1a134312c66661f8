"""The streams of CSI calls: the hub sends each call to a node, and passes the answer on.

Rules:

* A call is forwarded as bytes; the hub reads only its `Open` frame.
* If the caller leaves, the hub cancels the call at the node, and the agent decides whether the work goes on. If the
  node leaves, the caller gets an error that names the node.
* A proxy driver may call only its own driver (`cloud.proxy_rights`), and only the controller side of CSI.
"""

import logging

from cloud.edge_nodes import Call, Reply
from cloud.node_calls import NodeCalls
from cloud.placement.placement import Placement
from cloud.proxy_rights import ProxyRights
from common.accounting import Account, Accounted
from common.csi.methods import is_controller_side
from common.errors import Draining, NotCarried
from common.link import Stream
from common.messages import Open
from common.metrics import Metrics
from common.status import Origin

log = logging.getLogger("csi_bridge.hub")


class CallStreams:
    """Serves the calls of proxy drivers and operators."""

    def __init__(self, placement: Placement, counts: NodeCalls, metrics: Metrics, rights: ProxyRights) -> None:
        """Without calls.

        Args:
            placement: sends a call to its node.
            counts: counts the calls of each node.
            metrics: counts all of them.
            rights: say which proxy driver may call which driver.
        """
        self._placement = placement
        self._counts = counts
        self._metrics = metrics
        self._rights = rights
        self._draining = False

    def drain(self) -> None:
        """Refuse every call whose request comes from now on: the nodes' links take no new ones."""
        self._draining = True

    async def serve(self, stream: Stream) -> None:
        """Serve one call."""
        frame = stream.opened
        assert frame is not None
        with Accounted(
            self._metrics,
            log,
            origin=Origin.HUB,
            driver=frame.subject,
            method=frame.method,
            call_id=frame.call,
            node=frame.node,
            timeout_s=stream.remaining_s(),
        ) as account:
            request = await stream.receive() or b""
            account.request_bytes = len(request)
            if self._draining:
                raise Draining("hub")
            self._rights.check(stream)
            _check(frame)
            call = Call(frame.subject, frame.method, request, frame.call, stream.remaining_s())
            with self._counts.counted(account) as goes_to:
                mode = stream.link.context.placement
                reply = await self._placement.call(call, wanted=frame.node, mode=mode, goes_to=goes_to)
                await _forward(stream, reply, account)


def _check(frame: Open) -> None:
    if not is_controller_side(frame.method):
        why = "the hub forwards only methods of CSI, and of the Node service, which mounts volumes, NodeGetCapabilities"
        raise NotCarried(frame.method, why)


async def _forward(stream: Stream, reply: Reply, account: Account) -> None:
    """Pass the answer on, message by message, at the caller's pace; its release goes back the same way."""
    try:
        while (message := await reply.receive()) is not None:
            account.response_bytes += len(message)
            if reply.exhausted:  # the ordinary case: one message, which travels on with the status
                break
            await stream.send(message)
        assert reply.status is not None
        stream.end(reply.status, message)  # which the caller's limits may refuse
        stream.on_released = lambda delivered: reply.acknowledge(delivered=delivered)
        account.status = reply.status
    except BaseException:
        reply.cancel()
        raise
