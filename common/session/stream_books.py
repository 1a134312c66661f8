"""A stream's books: a session's state of one stream, for sending and receiving."""

from typing import TYPE_CHECKING

from common.session.receiver import Receiver

if TYPE_CHECKING:
    from common.messages import Open
    from common.status import Status


class StreamBooks:
    """The books of one stream, shared by a session's outbox and inbox. `mine`: this side opened it."""

    __slots__ = (
        "answered", "asked", "begun", "cost", "credit", "end", "granted", "id", "is_abandoned", "is_unary",
        "last", "left", "mine", "offset", "owed", "parts", "priority", "queue", "queued", "receiver",
        "wants_writable",
    )  # fmt: skip

    def __init__(
        self, stream_id: int, receiver: Receiver, *, mine: bool, priority: int, credit: int, granted: int
    ) -> None:
        self.id = stream_id
        self.receiver = receiver
        self.mine = mine
        self.priority = priority
        self.is_abandoned = False  # the receiver on this side hears no more, but for `released`
        self.answered = False  # the End was queued (accepted) or received (mine)
        self.is_unary = False  # a call: accepted, it has one request; mine, its last message is told with the end
        self.asked: tuple[Open, float | None] | None = None  # an accepted call whose request is not whole yet
        self.last: bytes | None = None  # the last message of a unary answer, before the end
        # Sending.
        self.credit = credit  # bytes that the peer still accepts
        self.queue: list[bytes] = []  # whole messages, not wholly handed to the transport; few, so no deque
        self.begun = False  # the first of them is covered by credit and being cut into chunks
        self.offset = 0  # of its bytes that have left
        self.wants_writable = False  # the receiver waits for `writable`
        self.end: Status | None = None  # to leave after the last message
        self.queued = False  # waits for its turn
        # Receiving.
        self.granted = granted  # bytes that this side still accepts
        self.owed = 0  # consumed, not yet given back
        self.parts: bytearray | None = None  # one buffer, because a peer may send tiny pieces
        self.left = 0
        self.cost = 0
