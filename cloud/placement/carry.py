"""Carry: sends a call to the node that `decide` chose, and records the call's outcome in the claim store.

Rules:

* `Keeping.FIRST`: the store records the things that a create has made before the caller gets the success.
* `Keeping.LATE`, the exemption that `pending` describes: the caller gets the success at once. The hub holds the things
  in memory until the caller has taken the answer. If nobody takes the answer, the store records the things.
* If the caller is cancelled, a write of the store that has begun goes on.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from cloud.edge_nodes import Call, Reply
from cloud.placement import outcome
from cloud.placement.attempts import Attempt
from cloud.placement.claim_store import ClaimStore, HeldBy
from cloud.placement.decisions import Ask, Keeping, Segment, Send
from cloud.placement.pending import Held, Pending
from cloud.placement.requests import Thing, made
from cloud.placement.segment import with_missing_topology, with_topology, without_topology
from common.errors import CallError, NameElsewhere, NodeOffline
from common.status import Code, Status


@dataclass(frozen=True, slots=True)
class Books:
    """The records of outcomes, and the clock.

    Attributes:
        store: the records that all hubs share.
        pending: the records of this hub alone.
        now: seconds since the epoch.
    """

    store: ClaimStore
    pending: Pending
    now: Callable[[], float]


@dataclass(frozen=True, slots=True)
class Errand:
    """One call on its way.

    Attributes:
        ask: the facts of the call.
        send: where it goes.
        books: where its outcome is kept.
        attempt: the attempt of a create at its name; None for any other call.
    """

    ask: Ask
    send: Send
    books: Books
    attempt: Attempt | None = None

    def end(self, *, in_doubt: bool | None) -> None:
        """Count the end of a create (`Attempt.end`)."""
        if self.attempt is not None:
            self.books.pending.end(self.attempt, in_doubt=in_doubt)

    def made(self, message: bytes | None) -> tuple[Thing, ...]:
        """The things that a create's answer names; none if it does not parse."""
        if self.attempt is None:
            return ()
        try:
            return made(self.ask.method, message or b"")
        except ValueError:
            return ()

    def hold(self, message: bytes | None) -> Held:
        """Hold the things that a successful answer names in memory, until the caller has taken the answer."""
        return self.books.pending.hold(self.ask.driver, self.send.node, self.ask.asked.name, self.made(message))

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
            NameElsewhere: the call failed with an error that the caller must not get (`outcome.must_wait`).
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
            standing = await self.books.store.look(driver, name, ())
        except CallError:
            return False
        return bool(self.books.pending.over(standing, driver, name).name.made)

    async def _succeeded(self, things: tuple[Thing, ...]) -> None:
        in_doubt = True
        try:
            driver, node = self.ask.driver, self.send.node
            new = outcome.after_creation(self.ask.asked.name, things)
            expected = (await self.books.store.look(driver, "", things)).ids
            while isinstance(result := await self.books.store.record(driver, node, new, expected), HeldBy):
                expected = result.entry
            in_doubt = not things
        finally:
            self.end(in_doubt=in_doubt)

    async def _deleted(self) -> None:
        driver, node, ends, store = self.ask.driver, self.send.node, self.send.ends, self.books.store
        self.books.pending.gone(driver, node, ends)
        claims = await store.look(driver, "", ends)
        while True:
            new = outcome.after_deletion(self.send, claims, now=self.books.now())
            result = await store.record(driver, node, new, claims.ids)
            if not isinstance(result, HeldBy):
                return
            claims = replace(claims, ids=result.entry)


def carry(call: Call, errand: Errand, send: Callable[[str, Call], Reply]) -> Reply:
    """Send a call to its node, and return a reply that records the outcome. A create's name has been claimed already.

    Args:
        call: the call, as the caller sent it.
        errand: where it goes, and where its outcome is kept.
        send: sends a call to a node (`Nodes.call`).

    Raises:
        CallError: the call was not sent.
    """
    node, attempt = errand.send.node, errand.attempt
    if errand.send.segment is Segment.ADDED:
        request = without_topology(call.method, call.request)
        call = call if request is call.request else replace(call, request=request)
    try:
        if attempt is not None:
            attempt.send()
        return CarriedReply(send(node, call), errand)
    except CallError:
        errand.end(in_doubt=None)
        raise
    except BaseException:  # a bug: the call may have been sent
        errand.end(in_doubt=True)
        raise


class CarriedReply:
    """A node's reply (`cloud.edge_nodes.Reply`) that records the call's outcome before the caller gets the status."""

    def __init__(self, reply: Reply, errand: Errand) -> None:
        self._reply, self._errand = reply, errand
        self._message: bytes | None = None
        self._held: Held = {}
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
            CallError: from the node's reply, or from `Errand.ended`.
        """
        try:
            message = await self._reply.receive()
        except CallError as error:
            self._end(in_doubt=None if isinstance(error, NodeOffline) else True)  # NodeOffline: the call was not sent
            raise
        if message is not None:
            message = self._message = self._errand.answer(message)
        if self._reply.status is not None and (message is None or self._reply.exhausted):
            await self._ended(self._reply.status)
        return message

    def acknowledge(self, *, delivered: bool) -> None:
        """Note whether the caller took the answer. If not, the store records the things of a `Keeping.LATE` success."""
        self._reply.acknowledge(delivered=delivered)
        if delivered:
            self._errand.books.pending.drop(self._held)
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
        if status.ok and self._errand.attempt is not None and self._errand.send.keeping is Keeping.LATE:
            self._hold()  # until `acknowledge` or `cancel`
            return
        self._is_over = True
        if self._errand.send.keeping is not Keeping.NEVER:
            await asyncio.shield(self._errand.ended(status, self._message))

    def _hold(self) -> None:
        self._held = self._held or self._errand.hold(self._message)

    def _give_up(self) -> None:
        """End a call whose answer nobody takes. The store records a success's things; any other end is in doubt."""
        if not self._is_over:
            if self._reply.status is not None and self._reply.status.ok:
                self._hold()
            self._errand.books.pending.record(self._held)
            self._end(in_doubt=not self._held)

    def _end(self, *, in_doubt: bool | None) -> None:
        """Count the end of the call once: nothing more comes from the node, or nothing more counts."""
        if not self._is_over:
            self._is_over = True
            self._errand.end(in_doubt=in_doubt)
