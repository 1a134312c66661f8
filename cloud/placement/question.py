"""A question: one CSI call of the hub's own to a node, and its answer of one message."""

import asyncio
from collections.abc import Callable

from cloud.node_call import Call, Caller, Reply
from common.errors import VendorBroken
from common.status import Status

CallNode = Callable[[str, Call, Caller], Reply]
"""Sends a call to a node (`cloud.edge_nodes.Nodes.call`)."""


async def ask(call: CallNode, node: str, question: Call) -> tuple[Status, bytes]:
    """Ask a node. Returns its status and the message. If the asker is cancelled, the call is, too.

    Raises:
        CallError: the node cannot be reached, or does not answer in time.
    """
    answer = _Answer(question.driver, node)
    reply = call(node, question, answer)
    try:
        status, message = await answer.whole
    except BaseException:
        reply.cancel()
        raise
    reply.acknowledge(delivered=True)
    return status, message


class _Answer:
    """Takes an answer of one message (`cloud.node_call.Caller`).

    Attributes:
        whole: the status and the message, once both have come.
    """

    def __init__(self, driver: str, node: str) -> None:
        self._driver, self._node = driver, node
        self.whole: asyncio.Future[tuple[Status, bytes]] = asyncio.get_running_loop().create_future()

    def sent(self) -> None:
        """Nothing to do."""

    def answered(self, _message: bytes) -> None:
        """Take a message that is not the last one."""
        self.failed(VendorBroken(self._driver, self._node, "it answered with several messages"))

    def ended(self, status: Status, message: bytes | None) -> None:
        """Take the end."""
        if not self.whole.done():
            self.whole.set_result((status, message or b""))

    def failed(self, error: Exception) -> None:
        """Take an error."""
        if not self.whole.done():
            self.whole.set_exception(error)
