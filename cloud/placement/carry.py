"""Carry: sends a call to the node that `decide` chose, and records the call's outcome in the claim store.

Rules:

* `Keeping.FIRST`: the store records the things that a create has made before the caller gets the success.
* `Keeping.LATE`, the exemption that `pending` describes: the caller gets the success at once. The hub holds the things
  in memory until the caller has taken the answer. If nobody takes the answer, the store records the things.
* A create never hands on the id of a thing that another node has made (`foreign_ids`), except where several nodes reach
  the same storage. The create stays in doubt, and the store does not record the id for this node.
* A create hands on one message, and only if the hub can read it: a caller that reads more than the hub would get an id
  that the hub has not checked.
* If the caller is cancelled, a write of the store that has begun goes on.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from cloud.edge_nodes import Call, Reply
from cloud.placement import outcome
from cloud.placement.attempts import Attempt
from cloud.placement.claim_store import HeldBy, Standing
from cloud.placement.decisions import Ask, Keeping, Segment, Send
from cloud.placement.foreign_ids import ForeignIds
from cloud.placement.pending import Pending, Untaken
from cloud.placement.requests import Thing, made
from cloud.placement.segment import terms_of, with_missing_topology, with_topology, without_topology
from common.errors import AnswerRefused, CallError, NameElsewhere, NodeOffline
from common.status import Code, Status


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

    def end(self, *, in_doubt: bool | None) -> None:
        """Count the end of a create (`Attempt.end`)."""
        if self.attempt is not None:
            self.pending.end(self.attempt, in_doubt=in_doubt)

    def check_answer(self, message: bytes, former: bytes | None) -> None:
        """Check a message of the answer.

        Args:
            message: the message.
            former: the one before it, if it is not the first one.

        Raises:
            AnswerRefused: it is one of a create, and the hub cannot read it, or it is not the only one.
        """
        if self.attempt is None:
            return
        driver, name, node = self.ask.driver, self.ask.asked.name, self.send.node
        if former is not None:
            raise AnswerRefused(driver, name, node, "more than one message")
        try:
            made(self.ask.method, message)
        except ValueError as error:
            raise AnswerRefused(driver, name, node, f"a message that the hub cannot read ({error})") from error

    def made(self, message: bytes | None) -> tuple[Thing, ...]:
        """The things that a create's answer names; none if it does not parse."""
        if self.attempt is None:
            return ()
        try:
            return made(self.ask.method, message or b"")
        except ValueError:
            return ()

    def keep(self, message: bytes | None) -> Untaken:
        """Keep the things that a successful answer names in memory, until the caller has taken the answer."""
        return self.pending.keep(self.ask.driver, self.send.node, self.ask.asked.name, self.made(message))

    def answer(self, message: bytes) -> bytes:
        """The answer with its topology changed as `Send.segment` says. An answer that does not parse stays as it is."""
        send = self.send
        if send.segment is Segment.AS_IS or send.member is None or not send.member.segments:
            return message
        edit = with_topology if send.segment is Segment.ADDED else with_missing_topology
        try:
            return edit(self.ask.method, message, send.member.segments)
        except ValueError:
            return message

    async def ended(self, status: Status, message: bytes | None) -> None:
        """Record the outcome of a call that the node has answered.

        Raises:
            PlacementNotKept: the call succeeded, and the store cannot record that. The caller gets this error instead.
            ForeignId: the call succeeded with the id of a thing that another node has.
            AnswerRefused: the call succeeded with a volume that is for another node.
            NameElsewhere: the call failed with an error that the caller must not get (`outcome.must_wait`).
        """
        if not status.ok:
            await self._failed(status)
        elif self.attempt is not None:
            await self._succeeded(message)
        elif self.send.ends:
            await self._deleted()

    async def _failed(self, status: Status) -> None:
        if self.attempt is None:
            return
        is_known = status.code == Code.ALREADY_EXISTS and await self._is_known()
        in_doubt = outcome.leaves_doubt(status, self.ask.asked, self.send, is_known=is_known)
        if not in_doubt:
            self.foreign.settle(self.ask.driver, self.ask.asked.name, self.send.node)
        self.end(in_doubt=in_doubt)
        if outcome.must_wait(self.attempt.name, self.send, in_doubt=in_doubt):
            place = "a topology that this node does not have"
            raise NameElsewhere(self.ask.driver, self.ask.asked.name, self.send.node, place)

    async def _is_known(self) -> bool:
        """Whether the hub knows a thing that was made under the name."""
        driver, name = self.ask.driver, self.ask.asked.name
        try:
            standing = await self.pending.look(driver, name, ())
        except CallError:
            return False
        return bool(self.pending.over(standing, driver, name).name.made)

    async def _succeeded(self, message: bytes | None) -> None:
        in_doubt, things = True, self.made(message)
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
                standing = replace(standing, ids=result.entry)
            in_doubt = not things
        finally:
            self.end(in_doubt=in_doubt)

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
            standing = replace(standing, ids=result.entry)


def carry(call: Call, placed: PlacedCall, send: Callable[[str, Call], Reply]) -> Reply:
    """Send a call to its node, and return a reply that records the outcome. A create's name has been claimed already.

    Args:
        call: the call, as the caller sent it.
        placed: the call with its node; it gets the outcome.
        send: sends a call to a node (`Nodes.call`).

    Raises:
        CallError: the call was not sent.
    """
    node, attempt = placed.send.node, placed.attempt
    if placed.send.segment is Segment.ADDED:
        request = without_topology(call.method, call.request)
        call = call if request is call.request else replace(call, request=request)
    try:
        if attempt is not None:
            attempt.send()
        return CarriedReply(send(node, call), placed)
    except CallError:
        placed.end(in_doubt=None)
        raise
    except BaseException:  # a bug: the call may have been sent
        placed.end(in_doubt=True)
        raise


class CarriedReply:
    """A node's reply (`cloud.edge_nodes.Reply`) that records the call's outcome before the caller gets the status."""

    def __init__(self, reply: Reply, placed: PlacedCall) -> None:
        self._reply, self._placed = reply, placed
        self._message: bytes | None = None
        self._untaken: Untaken = {}
        """The things of a success that the caller has not taken yet."""
        self._is_over = False

    @property
    def status(self) -> Status | None:
        """The node's status, after the last message."""
        return self._reply.status

    @property
    def exhausted(self) -> bool:
        """Whether the last message was received, and the status is known."""
        return self._reply.exhausted

    async def receive(self) -> bytes | None:
        """The answer's next message, or None after the last one.

        Raises:
            CallError: from the node's reply, from `PlacedCall.check_answer` or from `PlacedCall.ended`.
        """
        try:
            message = await self._reply.receive()
        except CallError as error:
            self._end(in_doubt=None if isinstance(error, NodeOffline) else True)  # NodeOffline: the call was not sent
            raise
        if message is not None:
            try:
                self._placed.check_answer(message, self._message)
            except CallError:
                self._end(in_doubt=True)
                raise
            message = self._message = self._placed.answer(message)
        if self._reply.status is not None and (message is None or self._reply.exhausted):
            await self._ended(self._reply.status)
        return message

    def acknowledge(self, *, delivered: bool) -> None:
        """Note whether the caller took the answer. If not, the store records the things of a `Keeping.LATE` success."""
        self._reply.acknowledge(delivered=delivered)
        if delivered:
            self._placed.pending.drop(self._untaken)
            self._end(in_doubt=False)
        else:
            self._give_up()

    def cancel(self) -> None:
        """Cancel the call: nobody waits for the answer any more. Record the things of a success that has come."""
        self._reply.cancel()
        self._give_up()

    async def _ended(self, status: Status) -> None:
        if self._is_over:
            return
        if status.ok and self._placed.attempt is not None and self._placed.send.keeping is Keeping.LATE:
            self._keep()  # until `acknowledge` or `cancel`
            return
        self._is_over = True
        if self._placed.send.keeping is not Keeping.NEVER:
            await asyncio.shield(self._placed.ended(status, self._message))

    def _keep(self) -> None:
        self._untaken = self._untaken or self._placed.keep(self._message)

    def _give_up(self) -> None:
        """End a call whose answer nobody takes. The store records a success's things; any other end is in doubt."""
        if not self._is_over:
            if self._reply.status is not None and self._reply.status.ok and not self._placed.send.is_exclusive:
                self._keep()  # else the ids are unchecked: the name stays with the node, and a retry checks them
            self._placed.pending.record(self._untaken)
            self._end(in_doubt=not self._untaken)

    def _end(self, *, in_doubt: bool | None) -> None:
        """Count the end of the call once: nothing more comes from the node, or nothing more counts."""
        if not self._is_over:
            self._is_over = True
            self._placed.end(in_doubt=in_doubt)
