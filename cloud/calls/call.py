"""A call: one CSI call on its way through the hub, from its caller to a node, and the answer back. It needs no task.

A `Call` is the receiver of two streams (`common.session.receiver.Receiver`): the caller's, and that of the node. Rules:

* A hub that stops refuses every call whose request comes from then on. A proxy driver may call only its own driver,
  and only the controller side of CSI.
* `cloud.placement` decides where it goes. A call that is pinned to a node passes as bytes. From some requests the hub
  removes the bridge's own parameters of a StorageClass (`cloud.calls.class_parameters`).
* The credit of a message goes back once the message has left the hub. So each side sends at the pace of its reader.
* A ControllerUnpublishVolume passes the mount guard when its node is known (`cloud.detach.mount_guard`).
* If the caller leaves, the hub cancels the call at the node, and the agent decides whether the work goes on. If the
  node leaves, the caller gets an error that names the node.
* An error ends its call, and never the link.

A create, and a call that deletes something, is recorded besides (`cloud.claims.claims`):

* `Recording.AHEAD`: the hub records the name before it sends the call. It records the things that a create made before
  the caller gets the success.
* `Recording.LATE`: a deletion as AHEAD. For a create, the exception in `claims`: the hub sends and answers it at once,
  and reads no answer of the usual size. If the caller does not acknowledge the answer, the hub records its things.
* `Recording.NAME_ONLY`, for a driver with an elected node: as AHEAD, but the book keeps no ids.
* A create never hands on the id of a thing that another node has made (`foreign_ids`): the create stays in doubt, and
  this node does not get the id. This does not hold where several nodes reach the same storage.
* A create hands on one message, and only if the hub can read it (but for LATE): a caller that reads more than the hub
  would get an id that the hub has not checked. Its ids have a largest size, because the records keep them.
* A caller that leaves before the call is sent stops it. A write that has begun goes on.
"""

import asyncio
import logging
from dataclasses import replace
from functools import partial

from cloud.calls.class_parameters import DIRECT, OFFLINE, as_direct, asks_for_direct, without_own
from cloud.calls.node_calls import NodeCalls
from cloud.claims.claim import Attempt, Claim
from cloud.claims.requests import LONGEST_CHARS, NOTHING_MADE, settled_with, things_in
from cloud.detach.mount_guard import MountGuard
from cloud.nodes.edge_nodes import Nodes
from cloud.nodes.question import Question
from cloud.nodes.visit import Visit
from cloud.placement import outcome
from cloud.placement.decisions import AskAll, CallInfo, Recording, Route, Segment
from cloud.placement.placement import Placement
from cloud.placement.segment import answer_with_topology, without_topology
from cloud.trust.admission import Role, foreign_driver
from common.csi.methods import UNARY, is_controller_side
from common.errors import (
    CallError,
    CallTimeout,
    LinkLost,
    Overloaded,
    TunnelClosed,
    VolumeHeld,
    answer_refused,
    name_elsewhere,
    not_carried,
    shutting_down,
    status_of,
)
from common.messages import Kind, Open
from common.observe.accounting import Account, Accounts
from common.observe.metrics import Metrics
from common.session.deadlines import before_the_caller
from common.session.link import Link
from common.session.receiver import Receiver
from common.status import Origin, Status

log = logging.getLogger("csi_bridge.hub")

UNPUBLISH = "/csi.v1.Controller/ControllerUnpublishVolume"

_KEY_BYTES = 4_096  # The part of a request that tells it from others (`NodeCalls`). Few have more.

_CARRIED = "the hub forwards only methods of CSI, and of the Node service, which mounts volumes, NodeGetCapabilities"


class Calls:
    """The calls of proxy drivers and operators."""

    def __init__(
        self,
        nodes: Nodes,
        placement: Placement,
        counts: NodeCalls,
        metrics: Metrics,
        guard: MountGuard,
    ) -> None:
        self.nodes = nodes
        self.placement = placement
        self.counts = counts
        self.guard = guard
        self.accounts = Accounts(metrics, log, origin=Origin.HUB)  # note every call
        self.is_draining = False  # whether every call whose request comes from now on is refused


class Call(Account, Receiver):
    """One call. It is its own account. `begin` it with its request.

    The call ends when either stream ends. Later callbacks of the other stream do nothing, except that `released` tells
    the node's stream whether the caller got the answer. The caller's stream calls `left` and `released`, the node's
    `took`, `ended` and `failed`, both `writable`.
    """

    __slots__ = (
        "_attempt", "_calls", "_deadline", "_frame", "_info", "_is_checked", "_is_direct", "_is_over", "_key", "_link",
        "_made", "_message", "_number", "_request", "_request_credit", "_route", "_status", "_task", "_timeout_s",
        "_unreturned_sizes", "_visit",
    )  # fmt: skip

    def __init__(self, calls: Calls, link: Link, frame: Open, deadline: float | None) -> None:
        """`deadline` is the end of the caller's time, in the loop's clock; None: it set no limit."""
        timeout_s = None if deadline is None else max(0.001, deadline - link.loop.time())
        super().__init__(calls.accounts, frame.subject, frame.method, frame.call, frame.node, timeout_s=timeout_s)
        self._calls = calls
        self._link = link
        self._frame = frame
        self._deadline = deadline
        self._key = 0  # the same for every try of the call
        self._request_credit = -1  # the size of the request if its credit has not gone back to the caller; -1: it has
        # Whether the call may pass. Before, an error is not the node's, although the caller may have named one.
        self._is_checked = False
        self._is_over = False  # whether the caller has an end, or has left
        self._is_direct = False  # whether the answer gets the attribute of a direct volume
        self._task: asyncio.Task[None] | None = None  # asks the nodes, if the hub answers itself
        self._info: CallInfo
        self._route: Route
        self._request = b""  # the request, while it waits for its claim
        # The link of the node, from the sending of the call until the caller releases it.
        self._visit: Visit | None = None
        self._number = 0  # the stream on it; 0: nothing was sent
        self._timeout_s: float | None = None
        self._unreturned_sizes: list[int] = []  # the sizes of the node's messages whose credit has not gone back
        self._status: Status | None = None  # the node's status
        # Its message, while the outcome is recorded; of a LATE call until it is released.
        self._message: bytes | None = None
        self._attempt: Attempt | None = None  # the attempt at the name, if there is one, until its end is counted
        self._made = NOTHING_MADE  # what the message of a create names

    def begin(self, request: bytes) -> None:
        """Decide where the call goes, and send it there, at once or when the records show its name."""
        calls = self._calls
        link = self._link
        driver = self.driver
        method = self.method
        self._request_credit = self.request_bytes = len(request)
        self._key = hash(request[:_KEY_BYTES])
        refusal: CallError | None = None
        if calls.is_draining:
            refusal = shutting_down("hub")
        elif link.context.role is Role.DRIVER and driver != link.peer.name:
            refusal = foreign_driver(link.peer.name, driver)
        elif not is_controller_side(method):
            refusal = not_carried(method, _CARRIED)
        if refusal is not None:
            self._fail(refusal)
            return
        self._is_checked = True
        try:
            if DIRECT in request or OFFLINE in request:
                self._is_direct = asks_for_direct(method, request)
                request = without_own(method, request)
            self._info, found = calls.placement.decide(
                driver, method, request, named_node=self._frame.node, mode=link.context.placement
            )
            if isinstance(found, AskAll):
                self._ask_all(found, request)
                return
            self._route = found
            if method == UNPUBLISH:
                calls.guard.check(driver, request, found.node)
            calls.counts.goes_to(self, found.node)
            visit = calls.nodes.reach(found.node, driver)
            self._request = request
            if self._info.name:
                self._claim(visit)
            else:
                self._carry(visit)
        except Exception as error:  # noqa: BLE001  # the caller gets it
            if isinstance(error, CallError) and error.node:
                calls.counts.goes_to(self, error.node)
            self._fail(error)

    def _claim(self, visit: Visit) -> None:
        info = self._info
        route = self._route
        claims = self._calls.placement.claims
        attempt = self._attempt = claims.begin(
            info.driver,
            info.name,
            route.node,
            lease_s=route.lease_s,
            machine=route.machine,
            stopped_nodes=route.stopped_nodes,
        )
        write = claims.record_open(info.driver, attempt) if route.recording is not Recording.LATE else None
        if write is not None:
            write.add_done_callback(self._claimed)
        else:
            self._carry(visit)

    def _claimed(self, write: asyncio.Future[None]) -> None:
        if self._attempt is None:  # the caller has left
            return
        try:
            self._calls.placement.claims.confirm(self._info.driver, self._attempt, write)
            self._carry(self._calls.nodes.reach(self._route.node, self._info.driver))
        except Exception as error:  # noqa: BLE001  # the caller gets it
            self._fail(error)

    def _carry(self, visit: Visit) -> None:
        route = self._route
        deadline = self._deadline
        request = self._request
        self._request = b""
        if route.segment is Segment.ADDED:
            request = without_topology(self.method, request)
        if deadline is not None:
            self._timeout_s = before_the_caller(max(0.001, deadline - self._link.loop.time()))
        if (attempt := self._attempt) is not None:
            attempt.send()
        try:
            number = visit.link.start(
                self,
                Kind.CALL,
                request,
                subject=self.driver,
                method=self.method,
                node=route.node,
                call=self.call_id,
                timeout_s=self._timeout_s,
                epoch=route.epoch,
                is_unary=self.method in UNARY,
            )
        except (Overloaded, TunnelClosed) as error:
            raise visit.not_sent(error) from error
        self._visit = visit
        self._number = number
        visit.calls[self.driver] += 1
        if self._request_credit >= 0 and not visit.link.watch_unsent(number):  # else `writable` follows
            credit = self._request_credit
            self._request_credit = -1
            self._link.consumed(self._frame.stream, credit)

    def _ask_all(self, ask_all: AskAll, request: bytes) -> None:
        if len(ask_all.routes) == 1:
            self._calls.counts.goes_to(self, ask_all.routes[0].node)
        question = Question(self.driver, self.method, request, self.call_id, self.timeout_s)
        self._task = self._link.loop.create_task(self._answer(question, ask_all), name=f"call {self.call_id}")
        self.writable()

    async def _answer(self, question: Question, ask_all: AskAll) -> None:
        try:
            status, message = await self._calls.placement.answer(question, self._info, ask_all)
        except Exception as error:  # noqa: BLE001  # the caller gets it
            self._fail(error)
        else:
            self._finish(status, message)

    # ---- the node's stream

    def took(self, message: bytes) -> None:
        """Pass a message of the answer on that is not the last one of a unary answer."""
        self._unreturned_sizes.append(len(message))
        self.response_bytes += len(message)
        try:
            message = self._checked(message, is_only=False)
            self._link.send(self._frame.stream, message)
            self.writable()
        except Exception as error:  # noqa: BLE001  # the caller's limits may refuse the message
            self._fail(error)

    def ended(self, status: Status, message: bytes | None) -> None:
        """Pass the end of the answer on as soon as the outcome is recorded, with its last message if there is one."""
        self._status = status
        write = None
        if message is not None:
            self._unreturned_sizes.append(len(message))
        if self._route.recording is not Recording.NEVER or self._route.segment is not Segment.AS_IS:
            try:
                if message is not None:
                    message = self._message = self._checked(message, is_only=True)
                claim = self._attempt.claim if self._attempt is not None else None
                write = self._record(status)
            except Exception as error:  # noqa: BLE001  # the caller gets it
                self._fail(error)
                return
            if write is not None:
                write.add_done_callback(partial(self._recorded, claim))
                return
        self._finish(status, message)

    def failed(self, error: TunnelClosed | CallTimeout) -> None:
        assert self._visit is not None
        if self._attempt is not None:
            self._end_attempt(in_doubt=True if isinstance(error, CallTimeout) or error.sent else None)
        self._fail(self._visit.fault(error, self.driver, self._timeout_s))

    # ---- the caller's stream

    def left(self) -> None:
        """Cancel the call: the caller no longer waits."""
        if self._is_over:
            return
        self._is_over = True
        # Open: it went to a node that has answered nothing, so `NodeCalls` goes on counting its age.
        is_open = self._task is not None or (
            self._request_credit < 0 and self._visit is not None and self._status is None
        )
        is_open = is_open and not self.response_bytes
        self._calls.counts.ended(self, None, request=self._key, is_open=is_open)
        self.leave()
        self.released(False)  # noqa: FBT003  # as in `Receiver`

    def released(self, delivered: bool) -> None:  # noqa: FBT001  # as in `Receiver`
        """Release the answer at the node, or stop waiting for it there."""
        if self._request_credit >= 0:
            credit = self._request_credit
            self._request_credit = -1
            self._link.consumed(self._frame.stream, credit)
        visit = self._visit
        self._visit = None
        if visit is None:
            if self._task is not None:
                self._task.cancel()
            elif self._attempt is not None:  # it waits for its claim
                self._end_attempt(in_doubt=None)
            return
        for size in self._unreturned_sizes:
            visit.link.consumed(self._number, size)
        visit.calls[self.driver] -= 1
        if self._status is not None:
            visit.link.acknowledge(self._number, delivered=delivered)
        else:
            visit.link.cancel(self._number)
        if self._attempt is not None:
            self._release(self._attempt, is_taken=delivered)

    # ---- both

    def writable(self) -> None:
        """Give back the credit of sent bytes: of the request to the caller, of the answer so far to the node."""
        visit = self._visit
        # else `writable` follows
        if self._request_credit >= 0 and (visit is None or not visit.link.watch_unsent(self._number)):
            credit = self._request_credit
            self._request_credit = -1
            self._link.consumed(self._frame.stream, credit)
        if self._unreturned_sizes and visit is not None and not self._link.watch_unsent(self._frame.stream):
            for size in self._unreturned_sizes:
                visit.link.consumed(self._number, size)
            self._unreturned_sizes.clear()

    def _finish(self, status: Status, message: bytes | None) -> None:
        if message is not None:
            if self._is_direct:
                message = as_direct(message)
            self.response_bytes += len(message)
        if status.origin == Origin.UNSENT:  # UNSENT means something only to the hub
            status = replace(status, origin=Origin.EDGE)
        try:
            self._link.end(self._frame.stream, status, message)
        except Exception as error:  # noqa: BLE001  # the caller's limits may refuse the message
            self._fail(error)
            return
        self._is_over = True
        self._calls.counts.ended(self, status, request=self._key)
        self.end(status)

    def _fail(self, error: Exception) -> None:
        if self._is_over:
            return
        self._is_over = True
        if not isinstance(error, CallError):
            log.error("a call failed: %s", self._frame, exc_info=error)
            if self._attempt is not None and self._attempt.number and self._visit is None:  # it may have been sent
                self._end_attempt(in_doubt=True)
        status = status_of(error, Origin.HUB)
        is_of_node = self._is_checked and isinstance(error, CallError) and not isinstance(error, VolumeHeld)
        is_open = isinstance(error, CallTimeout | LinkLost) and not self.response_bytes
        # First: from now on nobody waits at the node.
        self.released(False)  # noqa: FBT003  # as in `Receiver`
        self._link.end(self._frame.stream, status)
        self._calls.counts.ended(self, status if is_of_node else None, request=self._key, is_open=is_open)
        self.end(status)

    # ---- the outcome

    def _checked(self, message: bytes, *, is_only: bool) -> bytes:
        info = self._info
        route = self._route
        why = ""
        if self._attempt is not None:
            if not is_only:
                why = "more than one message"
            # A LATE answer that is smaller has no large ids.
            elif route.recording is not Recording.LATE or len(message) > LONGEST_CHARS:
                why = self._read(message)
            if why:
                self._end_attempt(in_doubt=True)
                raise answer_refused(info.driver, info.name, route.node, why)
        return message if route.segment is Segment.AS_IS else answer_with_topology(info.method, route, message)

    def _read(self, message: bytes) -> str:
        # Returns why the hub cannot read the answer to a create; empty if it can.
        info = self._info
        chars = 0
        try:
            found = things_in(info.method, message)
        except ValueError as error:
            return f"a message that the hub cannot read ({error})"
        for thing in found.things:
            chars += len(thing.id)
        if chars > LONGEST_CHARS * (1 + len(info.fields.things)):
            return f"ids of {chars} characters, and CSI allows 128 bytes for each"
        self._made = found
        return ""

    def _record(self, status: Status) -> asyncio.Future[None] | None:
        # Returns the write, if the caller has to wait for it. Raises CallError: the caller must not get this outcome.
        info = self._info
        route = self._route
        attempt = self._attempt
        claims = self._calls.placement.claims
        if attempt is None:
            if not status.ok or not route.deletes or info.name:
                return None
            is_pinned_by_hand = route.recording is Recording.AHEAD and not info.is_local
            return claims.record_deleted(info.driver, route.node, route.deletes, is_pinned_by_hand=is_pinned_by_hand)
        was_recorded = attempt.claim.must_record
        if route.recording is Recording.NAME_ONLY:
            freed = self._settle(status)
        elif not status.ok:
            self._fail_create(attempt, status)
            freed = []
        elif route.recording is Recording.LATE:  # `released` ends the attempt
            return None
        else:
            if info.is_local or route.has_own_ids:
                foreign = self._calls.placement.foreign
                book = claims.book(info.driver)
                try:
                    foreign.check(info.driver, info.name, route.node, book, self._made)
                except CallError:
                    self._end_attempt(in_doubt=True)
                    raise
            self._attempt = None
            return claims.record_made(info.driver, attempt, route.node, self._made.things)
        # Nobody asks again after a final answer, so the records must not have the name as open then.
        ended = [*freed, info.name] if was_recorded and not attempt.claim.must_record else freed
        return claims.write_names(info.driver, ended) if ended else None

    def _recorded(self, claim: Claim | None, write: asyncio.Future[None]) -> None:
        # The record goes on if the caller leaves.
        try:
            if write.exception() is not None:
                self._calls.placement.claims.check(write, self._info.driver, claim)
        except Exception as error:  # `_fail` sends it to the caller, and logs it if it is a bug
            if self._is_over and not isinstance(error, CallError):
                log.exception("the outcome of %s was not recorded, and its caller has left", self.method)
            self._fail(error)
            return
        if not self._is_over:
            assert self._status is not None
            self._finish(self._status, self._message)

    def _settle(self, status: Status) -> list[str]:
        # Of a call at an elected node. Returns the other names that are free now.
        claims = self._calls.placement.claims
        driver = self._info.driver
        is_create = bool(self._info.fields.name)
        if status.ok:
            if self._message is not None and self._made.things:
                claims.note_new(driver, self._route.node, self._info.method, self._message)
            self._end_attempt(in_doubt=is_create and not self._made.things)
        else:
            self._end_attempt(in_doubt=outcome.stays_open(status, is_create=is_create))
        if not status.ok or is_create:
            return []
        others = {claim.name for claim in claims.book(driver).open_about(self._info.name)} - {self._info.name}
        freed = settled_with(self._info.name, others)
        claims.free(driver, freed)
        return freed

    def _fail_create(self, attempt: Attempt, status: Status) -> None:
        info = self._info
        route = self._route
        in_doubt = outcome.leaves_doubt(status, info, route, is_known=bool(attempt.claim.made_at))
        if not in_doubt:
            self._calls.placement.foreign.settle(info.driver, info.name, route.node)
        self._end_attempt(in_doubt=in_doubt)
        if outcome.must_wait(info, route, is_open=attempt.claim.is_open, in_doubt=in_doubt):
            raise name_elsewhere(info.driver, info.name, route.node, "a topology that this node does not have")

    def _release(self, attempt: Attempt, *, is_taken: bool) -> None:
        # If nobody took a LATE success, the records get its things. Any other outcome that nobody took is in doubt.
        claims = self._calls.placement.claims
        info = self._info
        node = self._route.node
        message = self._message
        if is_taken:
            if message is not None:
                claims.note_new(info.driver, node, info.method, message)
            self._end_attempt(in_doubt=False)
        elif message is not None and self._route.recording is Recording.LATE and not self._read(message):
            self._attempt = None
            claims.record_unacknowledged(info.driver, attempt, node, self._made.things)
        else:
            self._end_attempt(in_doubt=True)

    def _end_attempt(self, *, in_doubt: bool | None) -> None:
        # Once: nothing more comes from the node, or nothing more counts.
        attempt = self._attempt
        self._attempt = None
        if attempt is not None:
            self._calls.placement.claims.end_attempt(self._info.driver, attempt, in_doubt=in_doubt)
