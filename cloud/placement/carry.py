"""Carry: sends a call to its node, watches how it ends, and tells the claim store. It decides nothing.

Rules:

* The claim store has a create's things before the caller gets the success (`Keeping.FIRST`).
* The exemption of `pending` (`Keeping.LATE`): the caller gets a success at once, and the things are pending until the
  caller has taken it. If nobody takes it, the store records them.
* Cancelling a caller does not stop a write that has begun.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from cloud.edge_nodes import Call, Reply
from cloud.placement import outcome
from cloud.placement.attempts import Attempt
from cloud.placement.claim_store import HeldBy
from cloud.placement.decisions import Ask, Keeping, Segment, Send
from cloud.placement.pending import Pending, Untaken
from cloud.placement.requests import Thing, made
from cloud.placement.segment import with_missing_topology, with_topology, without_topology
from common.errors import CallError, NameElsewhere, NodeOffline
from common.status import Code, Status


@dataclass(frozen=True, slots=True)
class PlacedCall:
    """A call with its node. Tells the claim store how the call ends.

    Attributes:
        ask: the facts of the call.
        send: its node, and how its outcome is kept.
        pending: this hub's names and ids, over the claim store's.
        attempt: its attempt at its name; None if it makes nothing.
    """

    ask: Ask
    send: Send
    pending: Pending
    attempt: Attempt | None = None

    def end(self, *, in_doubt: bool | None) -> None:
        """The call has ended (`Attempt.end`)."""
        if self.attempt is not None:
            self.pending.end(self.attempt, in_doubt=in_doubt)

    def made(self, message: bytes | None) -> tuple[Thing, ...]:
        """The things that an answer names; none if it does not parse."""
        if self.attempt is None:
            return ()
        try:
            return made(self.ask.method, message or b"")
        except ValueError:
            return ()

    def keep(self, message: bytes | None) -> Untaken:
        """Keep the things of a success until the caller has taken it."""
        return self.pending.keep(self.ask.driver, self.send.node, self.ask.asked.name, self.made(message))

    def answer(self, message: bytes) -> bytes:
        """The answer as the caller gets it. An answer that does not parse is the caller's to judge."""
        send = self.send
        if send.segment is Segment.AS_IS or send.member is None or not send.member.segments:
            return message
        edit = with_topology if send.segment is Segment.ADDED else with_missing_topology
        try:
            return edit(self.ask.method, message, send.member.segments)
        except ValueError:
            return message

    async def ended(self, status: Status, message: bytes | None) -> None:
        """Record the end that the node has told.

        Raises:
            PlacementNotKept: it succeeded, and the store cannot record that: the caller must not get it.
            NameElsewhere: it failed, and the caller must not get that (`outcome.must_wait`).
        """
        if not status.ok:
            await self._failed(status)
        elif self.attempt is not None:
            await self._succeeded(self.made(message))
        elif self.send.ends:
            await self._deleted()

    async def _failed(self, status: Status) -> None:
        if self.attempt is None:
            return
        is_known = status.code == Code.ALREADY_EXISTS and await self._is_known()
        in_doubt = outcome.leaves_doubt(status, self.ask.asked, self.send, is_known=is_known)
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

    async def _succeeded(self, things: tuple[Thing, ...]) -> None:
        in_doubt = True
        try:
            driver, node = self.ask.driver, self.send.node
            new = outcome.after_creation(self.ask.asked.name, things)
            expected = (await self.pending.store.look(driver, "", things)).ids
            while isinstance(result := await self.pending.store.record(driver, node, new, expected), HeldBy):
                expected = result.entry
            in_doubt = not things
        finally:
            self.end(in_doubt=in_doubt)

    async def _deleted(self) -> None:
        driver, node, ends, store = self.ask.driver, self.send.node, self.send.ends, self.pending.store
        self.pending.gone(driver, node, ends)
        while True:
            standing = await store.look(driver, "", ends)
            new = outcome.after_deletion(self.send, standing, now=self.pending.now())
            if not isinstance(await store.record(driver, node, new, standing.ids), HeldBy):
                return


def carry(call: Call, placed: PlacedCall, send: Callable[[str, Call], Reply]) -> Reply:
    """Send a call whose name is claimed, if it has to be.

    Args:
        call: the call, as the caller sent it.
        placed: the call with its node; it gets the outcome.
        send: sends it to a node (`Nodes.call`).

    Raises:
        CallError: it was not sent.
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
    except BaseException:  # a bug, perhaps after the call was sent
        placed.end(in_doubt=True)
        raise


class CarriedReply:
    """A node's reply (`cloud.edge_nodes.Reply`), which records its outcome before the caller gets its status."""

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
            CallError: as the node's reply, or as `PlacedCall.ended`.
        """
        try:
            message = await self._reply.receive()
        except CallError as error:
            self._end(in_doubt=None if isinstance(error, NodeOffline) else True)  # NodeOffline: it was not sent
            raise
        if message is not None:
            message = self._message = self._placed.answer(message)
        if self._reply.status is not None and (message is None or self._reply.exhausted):
            await self._ended(self._reply.status)
        return message

    def acknowledge(self, *, delivered: bool) -> None:
        """The answer reached the caller, or nobody took it."""
        self._reply.acknowledge(delivered=delivered)
        if delivered:
            self._placed.pending.drop(self._untaken)
            self._end(in_doubt=False)
        else:
            self._give_up()

    def cancel(self) -> None:
        """Nobody waits for the answer any more."""
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
        """Nobody takes the answer, as far as it came."""
        if not self._is_over:
            if self._reply.status is not None and self._reply.status.ok:
                self._keep()
            self._placed.pending.record(self._untaken)
            self._end(in_doubt=not self._untaken)

    def _end(self, *, in_doubt: bool | None) -> None:
        """No further word of the node comes."""
        if not self._is_over:
            self._is_over = True
            self._placed.end(in_doubt=in_doubt)
