"""Carry: sends a call to the node that `decide` chose, and records the call's outcome in the claim store.

Rules:

* `Keeping.FIRST`: the store records the things that a create has made before the caller gets the success.
* `Keeping.LATE`, the exemption that `pending` describes: the caller gets the success at once. The hub holds the things
  in memory until the caller has taken the answer. If nobody takes the answer, the store records the things.
* `Keeping.OPEN`, for a driver with an elected node: the store learns whether the call's outcome is open, and no ids.
* A create never hands on the id of a thing that another node has made (`foreign_ids`), except where several nodes reach
  the same storage. The create stays in doubt, and the store does not record the id for this node.
* A create hands on one message, and only if the hub can read it: a caller that reads more than the hub would get an id
  that the hub has not checked. Its ids have a largest size, because the store keeps them.
* If the caller is cancelled, a write of the store that has begun goes on.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from cloud.node_call import Call, Caller, Reply
from cloud.placement import outcome
from cloud.placement.attempts import Attempt
from cloud.placement.claim_store import HeldBy, Standing
from cloud.placement.decisions import Ask, Keeping, Segment, Send
from cloud.placement.foreign_ids import ForeignIds
from cloud.placement.pending import Pending, Untaken
from cloud.placement.requests import LONGEST_CHARS, Thing, made, settled_with
from cloud.placement.segment import placed_answer, terms_of, without_topology
from common.errors import AnswerRefused, CallError, NameElsewhere, NodeOffline
from common.status import Code, Status

log = logging.getLogger("csi_bridge.hub.placement")


@dataclass(frozen=True, slots=True)
class PlacedCall:
    """A call with its node. Tells the claim store how the call ends.

    Attributes:
        ask: the facts of the call.
        send: its node, and how its outcome is kept.
        pending: this hub's names and ids, over the claim store's.
        foreign: refuses ids of other nodes, and remembers them.
        attempt: its attempt at its name; None if it makes nothing.
    """

    ask: Ask
    send: Send
    pending: Pending
    foreign: ForeignIds
    attempt: Attempt | None = None

    def count_end(self, *, in_doubt: bool | None) -> None:
        """Count the end of a create (`Attempt.end`)."""
        if self.attempt is not None:
            self.pending.end(self.attempt, in_doubt=in_doubt)

    def made(self, message: bytes, *, is_only: bool) -> tuple[Thing, ...]:
        """The things that a message of the answer names, if the call is a create.

        Args:
            message: the message.
            is_only: whether the answer has no other one.

        Raises:
            AnswerRefused: it is one of a create, and unreadable, too large, or not the only one.
        """
        if self.attempt is None:
            return ()
        driver, name, node = self.ask.driver, self.ask.name, self.send.node
        if not is_only:
            raise AnswerRefused(driver, name, node, "more than one message")
        try:
            things = made(self.ask.method, message)
        except ValueError as error:
            raise AnswerRefused(driver, name, node, f"a message that the hub cannot read ({error})") from error
        chars = sum(len(thing.id) for thing in things)
        if chars > LONGEST_CHARS * (1 + len(self.ask.asked.things)):
            raise AnswerRefused(driver, name, node, f"ids of {chars} characters, and CSI allows 128 bytes for each")
        return things

    def keep(self, things: tuple[Thing, ...]) -> Untaken:
        """Keep the things that a successful answer names in memory, until the caller has taken the answer."""
        return self.pending.keep(self.ask.driver, self.send.node, self.ask.asked.name, things)

    def record(
        self, status: Status, message: bytes | None, things: tuple[Thing, ...]
    ) -> Coroutine[Any, Any, None] | None:
        """Record the outcome of a call that the node has answered.

        Args:
            status: the node's.
            message: the answer's message.
            things: the things that it names, if the call is a create.

        Returns:
            The rest of the work, if it has to wait for the store; it raises the same errors.

        Raises:
            PlacementNotKept: the call succeeded, and the store cannot record that. The caller gets this error instead.
            ForeignId: the call succeeded with the id of a thing that another node has.
            AnswerRefused: the call succeeded with a volume that is for another node.
            NameElsewhere: the call failed with an error that the caller must not get (`outcome.must_wait`).
        """
        if self.send.keeping is Keeping.OPEN and self.attempt is not None:
            return self._settle(self.attempt, status, things)
        if status.ok:
            if self.attempt is not None:
                return self._succeeded(message, things)
            return self._deleted() if self.send.ends else None
        if self.attempt is not None and status.code == Code.ALREADY_EXISTS:
            return self._existed(self.attempt, status)
        if self.attempt is not None:
            self._failed(self.attempt, status, is_known=False)
        return None

    def _settle(self, attempt: Attempt, status: Status, things: tuple[Thing, ...]) -> Coroutine[Any, Any, None] | None:
        if status.ok:
            self.pending.drop(self.keep(things))  # the leak audit knows that they are new
        is_create = bool(self.ask.asked.name)
        if status.ok:
            self.count_end(in_doubt=is_create and not things)
        else:
            self.count_end(in_doubt=outcome.stays_open(status, is_create=is_create))
        return self._settle_others(attempt.name.name) if status.ok and not is_create else None

    async def _settle_others(self, key: str) -> None:
        """Free the keys about the same thing that a success settles."""
        entry = (await self.pending.look(self.ask.driver, key, ())).name
        self.pending.free(self.ask.driver, settled_with(key, {other for other, _ in entry.beside}))

    async def _existed(self, attempt: Attempt, status: Status) -> None:
        self._failed(attempt, status, is_known=await self._is_known())

    def _failed(self, attempt: Attempt, status: Status, *, is_known: bool) -> None:
        in_doubt = outcome.leaves_doubt(status, self.ask.asked, self.send, is_known=is_known)
        if not in_doubt:
            self.foreign.settle(self.ask.driver, self.ask.asked.name, self.send.node)
        self.count_end(in_doubt=in_doubt)
        if outcome.must_wait(attempt.name, self.send, in_doubt=in_doubt):
            place = "a topology that this node does not have"
            raise NameElsewhere(self.ask.driver, self.ask.asked.name, self.send.node, place)

    async def _is_known(self) -> bool:
        driver, name = self.ask.driver, self.ask.asked.name
        try:
            standing = await self.pending.look(driver, name, ())
        except CallError:
            return False
        return bool(self.pending.over(standing, driver, name).name.made)

    async def _succeeded(self, message: bytes | None, things: tuple[Thing, ...]) -> None:
        in_doubt = True
        try:
            driver, node = self.ask.driver, self.send.node
            if self.send.is_exclusive and message is not None:
                self.foreign.check_place(driver, self.ask.asked.name, node, terms_of(self.ask.method, message))
            new = outcome.after_creation(self.ask.asked.name, things)
            standing = await self.pending.store.look(driver, "", things)
            while True:
                self._refuse_foreign(standing)
                alone = self.send.is_exclusive
                result = await self.pending.store.record(driver, node, new, standing.ids, alone=alone)
                if not isinstance(result, HeldBy):
                    break
                standing = standing._replace(ids=result.entry)
            in_doubt = not things
        finally:
            self.count_end(in_doubt=in_doubt)

    def _refuse_foreign(self, standing: Standing) -> None:
        if self.send.is_exclusive:
            driver, name = self.ask.driver, self.ask.asked.name
            ids = self.pending.over(standing, driver, "").ids
            self.foreign.check(driver, name, self.send.node, ids)

    async def _deleted(self) -> None:
        driver, node, ends, store = self.ask.driver, self.send.node, self.send.ends, self.pending.store
        self.pending.gone(driver, node, ends)
        standing = await store.look(driver, "", ends)
        while True:
            new = outcome.after_deletion(self.send, standing, now=self.pending.now())
            result = await store.record(driver, node, new, standing.ids)
            if not isinstance(result, HeldBy):
                return
            standing = standing._replace(ids=result.entry)


def carry(call: Call, placed: PlacedCall, send: Callable[[str, Call, Caller], Reply], caller: Caller) -> Reply:
    """Send a call to its node, and record the outcome. A create's name has been claimed already.

    Args:
        call: the call, as the caller sent it.
        placed: the call with its node; it gets the outcome.
        send: sends a call to a node (`Nodes.call`).
        caller: gets the answer.

    Raises:
        CallError: the call was not sent.
    """
    node, attempt = placed.send.node, placed.attempt
    if placed.send.epoch:
        call = call._replace(epoch=placed.send.epoch)
    if placed.send.segment is Segment.ADDED:
        request = without_topology(call.method, call.request)
        call = call if request is call.request else call._replace(request=request)
    carried = CarriedCall(placed, caller)
    try:
        if attempt is not None:
            attempt.send()
        carried.reply = send(node, call, carried)
    except CallError:
        placed.count_end(in_doubt=None)
        raise
    except BaseException:  # a bug: the call may have been sent
        placed.count_end(in_doubt=True)
        raise
    return carried


class CarriedCall:
    """A call whose outcome is recorded before its caller gets the status.

    It stands between the node and the caller: it is the node's `Caller`, and the caller's `Reply`.

    Attributes:
        reply: the node's reply, once the call was sent.
    """

    def __init__(self, placed: PlacedCall, caller: Caller) -> None:
        self.reply: Reply | None = None
        self._placed, self._caller = placed, caller
        self._status: Status | None = None
        self._message: bytes | None = None
        self._things: tuple[Thing, ...] = ()
        """The things that the message names, if the call is a create."""
        self._untaken: Untaken = {}
        """The things of a success that the caller has not taken yet."""
        self._is_counted = False
        """Whether the end is counted (`PlacedCall.count_end`), or `PlacedCall.record` counts it."""
        self._is_cancelled = False
        self._recording: asyncio.Task[None] | None = None

    # ---- the node's answer

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
        try:
            work = self._take_end(status, message)
        except Exception as error:  # noqa: BLE001  # the caller gets it
            self._caller.failed(error)
            return
        if work is None:
            self._caller.ended(status, self._message)
        else:
            self._recording = asyncio.ensure_future(self._record_and_tell(work, status))

    def failed(self, error: Exception) -> None:
        """See `Caller`."""
        self._count_end(in_doubt=None if isinstance(error, NodeOffline) else True)  # NodeOffline: the call was not sent
        self._caller.failed(error)

    def _take_end(self, status: Status, message: bytes | None) -> Coroutine[Any, Any, None] | None:
        """Record the outcome. Returns the rest of the work if it has to wait for the store."""
        self._status = status
        if message is not None:
            self._message = self._checked(message, is_only=True)
        if status.ok and self._placed.attempt is not None and self._placed.send.keeping is Keeping.LATE:
            self._keep()  # until `acknowledge` or `cancel`
            return None
        self._is_counted = True
        if self._placed.send.keeping is Keeping.NEVER:
            return None
        return self._placed.record(status, self._message, self._things)

    def _checked(self, message: bytes, *, is_only: bool) -> bytes:
        try:
            self._things = self._placed.made(message, is_only=is_only)
        except CallError:
            self._count_end(in_doubt=True)
            raise
        return placed_answer(self._placed.ask.method, self._placed.send, message)

    async def _record_and_tell(self, work: Coroutine[Any, Any, None], status: Status) -> None:
        """Let the store record the outcome, then tell the caller. If the caller leaves meanwhile, the write goes on."""
        try:
            await work
            if not self._is_cancelled:
                self._caller.ended(status, self._message)
        except Exception as error:  # the caller gets it, and logs a bug
            if not self._is_cancelled:
                self._caller.failed(error)
            elif not isinstance(error, CallError):
                log.exception("the outcome of %s was not recorded, and its caller has left", self._placed.ask.method)

    # ---- the caller's side

    @property
    def is_sent(self) -> bool:
        """See `Reply`."""
        assert self.reply is not None
        return self.reply.is_sent

    def passed_on(self) -> None:
        """See `Reply`."""
        assert self.reply is not None
        self.reply.passed_on()

    def acknowledge(self, *, delivered: bool) -> None:
        """Note whether the caller took the answer. If not, the store records the things of a `Keeping.LATE` success."""
        self._take_reply().acknowledge(delivered=delivered)
        if delivered:
            self._placed.pending.drop(self._untaken)
            self._count_end(in_doubt=False)
        else:
            self._give_up()

    def cancel(self) -> None:
        """Cancel the call: nobody waits for the answer any more. Record the things of a success that has come."""
        self._is_cancelled = True
        self._take_reply().cancel()
        self._give_up()

    def _take_reply(self) -> Reply:
        """Return the node's reply, for the last time: the two would keep each other, with the answer."""
        reply, self.reply = self.reply, None
        assert reply is not None
        return reply

    def _keep(self) -> None:
        self._untaken = self._untaken or self._placed.keep(self._things)

    def _give_up(self) -> None:
        """End a call whose answer nobody takes. The store records a success's things; any other end is in doubt."""
        if not self._is_counted:
            if self._status is not None and self._status.ok and not self._placed.send.is_exclusive:
                self._keep()  # else the ids are unchecked: the name stays with the node, and a retry checks them
            self._placed.pending.record(self._untaken)
            self._count_end(in_doubt=not self._untaken)

    def _count_end(self, *, in_doubt: bool | None) -> None:
        """Count the end of the call once: nothing more comes from the node, or nothing more counts."""
        if not self._is_counted:
            self._is_counted = True
            self._placed.count_end(in_doubt=in_doubt)
