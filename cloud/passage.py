"""A passage: one CSI call on its way through the hub, from its caller to a node, and the answer back.

`Passages` has the parts that all of them share, and says which may pass. Rules:

* A proxy driver may call only its own driver (`cloud.admission`), and only the controller side of CSI.
* A hub that stops refuses every call whose request comes from then on.

* A passage needs no task: the links' callbacks pass each message on when it comes.
* A call is forwarded as bytes; the hub reads only its `Open` frame. Out of some it takes the bridge's own parameters of
  a StorageClass (`cloud.class_parameters`).
* The credit of a message goes back once the message has left the hub. So each side sends at the pace of its reader.
* A ControllerUnpublishVolume passes the mount guard when its node is known (`cloud.mount_guard`).
* If the caller leaves, the hub cancels the call at the node, and the agent decides whether the work goes on. If the
  node leaves, the caller gets an error that names the node.
* An error ends its call, and never the link.
"""

import logging
from collections.abc import Callable
from dataclasses import replace

from cloud.admission import check_driver
from cloud.class_parameters import without_own
from cloud.mount_guard import UNPUBLISH, MountGuard
from cloud.node_call import Call, Reply
from cloud.node_calls import NodeCalls
from cloud.placement.placement import Placement
from common.accounting import Accounts
from common.csi.methods import is_controller_side
from common.errors import CallError, CallTimeout, Draining, LinkLost, NotCarried, VolumeHeld, status_of
from common.link import Link
from common.messages import Open
from common.metrics import Metrics
from common.receiver import Receiver
from common.status import Origin, Status

log = logging.getLogger("csi_bridge.hub")


_KEY_BYTES = 4_096
"""The part of a request that tells it from others (`NodeCalls`). Few have more."""

_CARRIED = "the hub forwards only methods of CSI, and of the Node service, which mounts volumes, NodeGetCapabilities"


class Passages:
    """The calls of proxy drivers and operators.

    Attributes:
        placement: sends a call to its node.
        counts: counts the calls of each node.
        accounts: note every call.
        guard: holds a detach back while the volume may be mounted.
    """

    def __init__(self, placement: Placement, counts: NodeCalls, metrics: Metrics, guard: MountGuard) -> None:
        self.placement = placement
        self.counts = counts
        self.guard = guard
        self.accounts = Accounts(metrics, log, origin=Origin.HUB)
        self._draining = False

    def drain(self) -> None:
        """Refuse every call whose request comes from now on: the nodes' links take no new ones."""
        self._draining = True

    def check(self, link: Link, frame: Open) -> None:
        """Check a call whose request has come.

        Raises:
            Draining: the hub is stopping.
            ForeignDriver: the proxy driver may not call this driver.
            NotCarried: the method is none of the controller side.
        """
        if self._draining:
            raise Draining("hub")
        check_driver(link, frame.subject)
        if not is_controller_side(frame.method):
            raise NotCarried(frame.method, _CARRIED)


class Passage(Receiver):
    """One call on its way through the hub.

    It has two ends: the caller's stream (`common.receiver.Receiver`), and the node's answer (`cloud.node_call.Caller`).
    The end of either is the end of the call; later calls from the other one are dropped. A caller's stream never tells
    `ended` or `failed`, because the peer has opened it: these come from the node.
    """

    __slots__ = (
        "_account", "_calls", "_deadline", "_frame", "_is_checked", "_is_over", "_key", "_link",
        "_owed", "_reply",
    )  # fmt: skip

    def __init__(self, calls: Passages, link: Link, frame: Open, deadline: float | None) -> None:
        """`deadline` is the end of the caller's time, in the loop's clock; None: it set no limit."""
        self._calls = calls
        self._link = link
        self._frame = frame
        self._deadline = deadline
        self._reply: Reply | None = None
        """The call on its way to the node."""
        self._is_over = False
        self._is_checked = False
        """Whether the call may pass. Before, an error is not the node's, although the caller may have named one."""
        self._key = 0
        """The same for every try of the call."""
        self._owed: int | None = None
        """The size of the request if its credit has not gone back to the caller."""
        self._account = calls.accounts.begin(
            frame.subject, frame.method, frame.call, node=frame.node, timeout_s=self._remaining_s()
        )

    # ---- the caller's stream

    def took(self, message: bytes) -> None:
        """Send the request to its node."""
        frame = self._frame
        self._owed = self._account.request_bytes = len(message)
        self._key = hash(message[:_KEY_BYTES])
        try:
            self._calls.check(self._link, frame)
            self._is_checked = True
            request = without_own(frame.method, message)
            call = Call(frame.subject, frame.method, request, frame.call, self._remaining_s())
            mode = self._link.context.placement
            goes_to = self._goes_to if frame.method != UNPUBLISH else self._guarded(message)
            self._reply = self._calls.placement.call(call, self, wanted=frame.node, mode=mode, goes_to=goes_to)
            if self._reply.is_sent:
                self._give_back()
        except Exception as error:  # noqa: BLE001  # the caller gets it
            self.failed(error)

    def left(self) -> None:
        """Cancel the call: the caller no longer waits."""
        if self._is_over:
            return
        self._is_over = True
        is_open = self._reply is not None and self._reply.is_sent and not self._account.response_bytes
        self._calls.counts.ended(self._account, None, request=self._key, is_open=is_open)
        self._account.leave()
        self._cancel()

    def released(self, delivered: bool) -> None:  # noqa: FBT001  # as in `Receiver`
        """Release the answer at the node."""
        self._give_back()
        reply, self._reply = self._reply, None  # the two would keep each other, with the answer
        if reply is not None:
            reply.acknowledge(delivered=delivered)

    def writable(self) -> None:
        """Let the node send more: what it has sent so far has left for the caller."""
        if self._reply is not None:
            self._reply.passed_on()

    # ---- the node's answer

    def sent(self) -> None:
        """Give the caller the credit of its request back."""
        self._give_back()

    def answered(self, message: bytes) -> None:
        """Pass a message of the answer on."""
        if self._is_over:
            return
        self._account.response_bytes += len(message)
        try:
            self._link.send(self._frame.stream, message)
            if not self._link.unsent(self._frame.stream):  # else `writable` follows
                self.writable()
        except Exception as error:  # noqa: BLE001  # the caller's limits may refuse the message
            self.failed(error)

    def ended(self, status: Status, message: bytes | None = None) -> None:
        """Pass the end of the answer on, with its last message if there is one."""
        if self._is_over:
            return
        if message is not None:
            self._account.response_bytes += len(message)
        if status.origin == Origin.UNSENT:  # for the placement alone
            status = replace(status, origin=Origin.EDGE)
        try:
            self._link.end(self._frame.stream, status, message)
        except Exception as error:  # noqa: BLE001  # the caller's limits may refuse the message
            self.failed(error)
            return
        self._is_over = True
        self._calls.counts.ended(self._account, status, request=self._key)
        self._account.end(status)

    def failed(self, error: Exception) -> None:
        """Tell the caller why there is no answer. Nobody waits at the node from now on."""
        if self._is_over:
            return
        self._is_over = True
        if not isinstance(error, CallError):
            log.error("a call failed: %s", self._frame, exc_info=error)
        status = status_of(error, Origin.HUB)
        self._cancel()
        self._link.end(self._frame.stream, status)
        is_of_node = self._is_checked and isinstance(error, CallError) and not isinstance(error, VolumeHeld)
        is_open = isinstance(error, CallTimeout | LinkLost) and not self._account.response_bytes
        counted = status if is_of_node else None
        self._calls.counts.ended(self._account, counted, request=self._key, is_open=is_open)
        self._account.end(status)

    # ---- inside

    def _goes_to(self, node: str) -> None:
        self._calls.counts.goes_to(self._account, node)

    def _guarded(self, request: bytes) -> Callable[[str], None]:
        """`_goes_to` for a detach: it raises VolumeHeld if the guard holds the volume back."""

        def goes_to(node: str) -> None:
            self._calls.guard.check(self._frame.subject, request, node)
            self._goes_to(node)

        return goes_to

    def _remaining_s(self) -> float | None:
        return None if self._deadline is None else max(0.001, self._deadline - self._link.loop.time())

    def _cancel(self) -> None:
        """Cancel the call at the node, or release its answer undelivered."""
        reply, self._reply = self._reply, None
        if reply is not None:
            reply.cancel()

    def _give_back(self) -> None:
        owed, self._owed = self._owed, None
        if owed is not None:  # a request without a byte has its credit, too
            self._link.consumed(self._frame.stream, owed)
