"""A placed call: a call on its way to the node that `route` chose. It tells the claims how the call ends.

It stands between the node and the caller: it is the node's `Caller`, and the caller's `Reply`. Rules:

* `Keeping.FIRST`: the name is in the records before the call is sent, and the things that a create has made before the
  caller gets the success.
* `Keeping.LATE`, the exemption that `claims` describes: the call is sent and answered at once. The hub holds the things
  in memory until the caller has taken the answer. If nobody takes it, the records get them.
* `Keeping.OPEN`, for a driver with an elected node: as FIRST, and the book keeps no ids.
* A create never hands on the id of a thing that another node has made (`foreign_ids`), except where several nodes reach
  the same storage. The create stays in doubt, and this node does not get the id.
* A create hands on one message, and only if the hub can read it: a caller that reads more than the hub would get an id
  that the hub has not checked. Its ids have a largest size, because the records keep them.
* A caller that leaves before the call is sent stops it. A write that has begun goes on.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, NamedTuple

from cloud.edge_nodes import Nodes
from cloud.node_call import Call, Caller, Reply
from cloud.placement import outcome
from cloud.placement.claim import Attempt
from cloud.placement.claims import Claims, Untaken
from cloud.placement.decisions import Ask, Keeping, Segment, Send
from cloud.placement.foreign_ids import ForeignIds
from cloud.placement.requests import LONGEST_CHARS, made, settled_with
from cloud.placement.rules import Thing
from cloud.placement.segment import placed_answer, terms_of, without_topology
from common.errors import AnswerRefused, CallError, NameElsewhere, NodeOffline, stopped
from common.status import Origin, Status

log = logging.getLogger("csi_bridge.hub.placement")


class Way(NamedTuple):
    """The things that every placed call needs.

    Attributes:
        claims: names and ids.
        foreign: refuses ids of other nodes, and remembers them.
        nodes: the nodes.
    """

    claims: Claims
    foreign: ForeignIds
    nodes: Nodes


class PlacedCall:
    """A call whose outcome is recorded. The caller hears nothing before `start` returns."""

    def __init__(self, call: Call, caller: Caller, ask: Ask, send: Send, way: Way) -> None:
        """Begin an attempt at the name, if there is one. Raises NameElsewhere if another node holds it."""
        self._call, self._caller, self._ask, self._send = call, caller, ask, send
        self._claims, self._foreign, self._nodes = way
        self._attempt: Attempt | None = None
        """The attempt at the name, until its end is counted."""
        if ask.name:
            lease_s, machine, over = send.terms
            self._attempt = self._claims.begin(
                ask.driver, ask.name, send.node, lease_s=lease_s, machine=machine, over=over
            )
        self._reply: Reply | None = None
        """The call at the node, from its sending until the caller releases it."""
        self._message: bytes | None = None
        self._things: tuple[Thing, ...] = ()
        """The things that the message names, if the call is a create."""
        self._untaken: Untaken = {}
        """The things of a success that the caller has not taken yet."""
        self._is_success = self._is_over = False
        """Whether the node has answered with a success; whether the caller has left."""
        self._task: asyncio.Task[None] | None = None
        """The claim before the call is sent, or the record of its outcome."""

    def start(self) -> None:
        """Send the call, at once if the records need not show it first.

        Raises:
            CallError: it was not sent.
        """
        if self._attempt is None or self._send.keeping is Keeping.LATE:
            self._carry()
        else:
            work = self._claim_and_carry(self._attempt)
            self._task = asyncio.get_running_loop().create_task(work, name=f"call {self._call.call_id}")

    async def _claim_and_carry(self, attempt: Attempt) -> None:
        try:
            await self._claims.claim(self._ask.driver, attempt)
            self._carry()
        except asyncio.CancelledError:
            self._end(in_doubt=None)
            if not self._is_over:  # the process stops, and the caller may still wait
                self._caller.ended(stopped(Origin.HUB), None)
            raise
        except Exception as error:  # noqa: BLE001  # the caller gets it
            self._end(in_doubt=None)
            self._caller.failed(error)
        else:
            if self.is_sent:
                self._caller.sent()

    def _carry(self) -> None:
        call, send = self._call, self._send
        if send.epoch:
            call = call._replace(epoch=send.epoch)
        if send.segment is Segment.ADDED:
            call = call._replace(request=without_topology(call.method, call.request))
        try:
            if self._attempt is not None:
                self._attempt.send()
            self._reply = self._nodes.call(send.node, call, self)
        except BaseException as error:
            self._end(in_doubt=None if isinstance(error, CallError) else True)  # a bug: the call may have been sent
            raise

    # ---- the node's answer -------------------------------------------------------------------------------------------

    def sent(self) -> None:
        """See `Caller`."""
        self._caller.sent()

    def answered(self, message: bytes) -> None:
        """See `Caller`."""
        try:
            message = self._checked(message, is_only=False)
        except Exception as error:  # noqa: BLE001  # the caller gets it
            self._caller.failed(error)
        else:
            self._caller.answered(message)

    def ended(self, status: Status, message: bytes | None) -> None:
        """See `Caller`. The caller gets the end as soon as the outcome is recorded."""
        self._is_success = status.ok
        try:
            if message is not None:
                self._message = self._checked(message, is_only=True)
            work = self._record(status, message)
        except Exception as error:  # noqa: BLE001  # the caller gets it
            self._caller.failed(error)
            return
        if work is None:
            self._caller.ended(status, self._message)
        else:
            self._task = asyncio.ensure_future(self._tell_after(work, status))

    def failed(self, error: Exception) -> None:
        """See `Caller`."""
        self._end(in_doubt=None if isinstance(error, NodeOffline) else True)  # NodeOffline: the call was not sent
        self._caller.failed(error)

    def _checked(self, message: bytes, *, is_only: bool) -> bytes:
        """A message of the answer as the caller gets it.

        Raises:
            AnswerRefused: it is one of a create, and unreadable, too large, or not the only one.
        """
        if self._attempt is not None:
            try:
                self._things = self._made(message, is_only=is_only)
            except CallError:
                self._end(in_doubt=True)
                raise
        return placed_answer(self._ask.method, self._send, message)

    def _made(self, message: bytes, *, is_only: bool) -> tuple[Thing, ...]:
        driver, name, node = self._ask.driver, self._ask.name, self._send.node
        if not is_only:
            raise AnswerRefused(driver, name, node, "more than one message")
        try:
            things = made(self._ask.method, message)
        except ValueError as error:
            raise AnswerRefused(driver, name, node, f"a message that the hub cannot read ({error})") from error
        chars = sum(len(thing.id) for thing in things)
        if chars > LONGEST_CHARS * (1 + len(self._ask.asked.things)):
            raise AnswerRefused(driver, name, node, f"ids of {chars} characters, and CSI allows 128 bytes for each")
        return things

    def _record(self, status: Status, message: bytes | None) -> Coroutine[Any, Any, None] | None:
        """Record the outcome. Returns the rest of the work, if the caller has to wait for it.

        Raises:
            ForeignId: the call succeeded with the id of a thing that another node has.
            AnswerRefused: the call succeeded with a volume that is for another node.
            NameElsewhere: the call failed with an error that the caller must not get (`outcome.must_wait`).
        """
        ask, send, attempt = self._ask, self._send, self._attempt
        if attempt is None:
            is_end = status.ok and send.ends and not ask.name
            settles = send.keeping is Keeping.FIRST and not send.is_placed
            return self._claims.deleted(ask.driver, send.node, send.ends, settles=settles) if is_end else None
        was_kept = attempt.claim.is_kept
        if send.keeping is Keeping.OPEN:
            freed = self._settle(status)
        elif not status.ok:
            self._fail(attempt, status)
            freed = []
        elif send.keeping is Keeping.LATE:
            self._keep()  # until `acknowledge` or `cancel`
            return None
        else:
            if send.is_exclusive:
                self._refuse_foreign(message)
            self._attempt = None
            return self._claims.made(ask.driver, attempt, send.node, self._things)
        # Nobody asks again after a final answer, so the records must not have the name as open then.
        ended = [*freed, ask.name] if was_kept and not attempt.claim.is_kept else freed
        return self._claims.written(ask.driver, ended) if ended else None

    def _settle(self, status: Status) -> list[str]:
        """Count the end of a call at an elected node. Returns the other names that are free now."""
        claims, driver, is_create = self._claims, self._ask.driver, bool(self._ask.asked.name)
        if status.ok:  # the leak audit knows that the things are new
            claims.note_new(driver, self._send.node, self._things)
            self._end(in_doubt=is_create and not self._things)
        else:
            self._end(in_doubt=outcome.stays_open(status, is_create=is_create))
        if not status.ok or is_create:
            return []
        others = {claim.name for claim in claims.book(driver).open_about(self._ask.name)} - {self._ask.name}
        freed = settled_with(self._ask.name, others)
        claims.free(driver, freed)
        return freed

    def _fail(self, attempt: Attempt, status: Status) -> None:
        is_known = bool(attempt.claim.made_at)
        in_doubt = outcome.leaves_doubt(status, self._ask, self._send, is_known=is_known)
        if not in_doubt:
            self._foreign.settle(self._ask.driver, self._ask.name, self._send.node)
        self._end(in_doubt=in_doubt)
        if outcome.must_wait(self._send, is_open=attempt.claim.is_open, in_doubt=in_doubt):
            place = "a topology that this node does not have"
            raise NameElsewhere(self._ask.driver, self._ask.name, self._send.node, place)

    def _refuse_foreign(self, message: bytes | None) -> None:
        driver, name, node = self._ask.driver, self._ask.name, self._send.node
        try:
            if message is not None:
                self._foreign.check_place(driver, name, node, terms_of(self._ask.method, message))
            self._foreign.check(driver, name, node, self._claims.book(driver), self._things)
        except CallError:
            self._end(in_doubt=True)
            raise

    async def _tell_after(self, work: Coroutine[Any, Any, None], status: Status) -> None:
        """Wait for the record of the outcome, then tell the caller. The record goes on if the caller leaves."""
        try:
            await work
            if not self._is_over:
                self._caller.ended(status, self._message)
        except Exception as error:  # the caller gets it, and logs a bug
            if not self._is_over:
                self._caller.failed(error)
            elif not isinstance(error, CallError):
                log.exception("the outcome of %s was not recorded, and its caller has left", self._ask.method)

    # ---- the caller's side -------------------------------------------------------------------------------------------

    @property
    def is_sent(self) -> bool:
        """See `Reply`."""
        return self._reply is not None and self._reply.is_sent

    def passed_on(self) -> None:
        """See `Reply`."""
        if self._reply is not None:
            self._reply.passed_on()

    def acknowledge(self, *, delivered: bool) -> None:
        """Note whether the caller took the answer. If not, the records get the things of a `Keeping.LATE` success."""
        reply, self._reply = self._reply, None  # the two would keep each other, with the answer
        if reply is not None:
            reply.acknowledge(delivered=delivered)
        self._give_up(is_taken=delivered)

    def cancel(self) -> None:
        """Cancel the call: nobody waits for the answer any more. Record the things of a success that has come."""
        self._is_over = True
        reply, self._reply = self._reply, None
        if reply is not None:
            reply.cancel()
            self._give_up(is_taken=False)
        elif self._task is not None and self._attempt is not None:  # it waits for its claim
            self._task.cancel()
            self._end(in_doubt=None)  # a task that has not begun yet runs no handler of its own

    def _keep(self) -> None:
        if not self._untaken:
            self._untaken = self._claims.keep(self._ask.driver, self._send.node, self._ask.name, self._things)

    def _give_up(self, *, is_taken: bool) -> None:
        """End a call whose answer was taken or not. A success's things are recorded; any other end is in doubt."""
        if self._attempt is None:
            return
        if not is_taken and self._is_success and not self._send.is_exclusive:
            self._keep()  # else the ids are unchecked: the name stays with the node, and a retry checks them
        self._claims.release(self._ask.driver, self._untaken, is_taken=is_taken)
        self._end(in_doubt=not (is_taken or self._untaken))

    def _end(self, *, in_doubt: bool | None) -> None:
        """Count the end of the attempt once: nothing more comes from the node, or nothing more counts."""
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            self._claims.end(self._ask.driver, attempt, in_doubt=in_doubt)
