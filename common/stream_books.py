"""A stream's books: a session's state of one stream, for sending and receiving."""

from collections import deque


class Stream:
    """The books of one stream, shared by a session's outbox and inbox. `mine`: this side opened it."""

    __slots__ = (
        "answered", "cost", "credit", "deadline", "end", "granted", "id", "left", "message", "mine", "offset", "over",
        "owed", "parts", "priority", "queue", "queued", "unsent",
    )  # fmt: skip

    def __init__(self, number: int, *, mine: bool, priority: int, credit: int, granted: int) -> None:
        self.id = number
        self.mine = mine
        self.priority = priority
        self.deadline: float | None = None
        self.over = False  # the application on this side gets no more events of it
        self.answered = False  # the End was queued (accepted) or received (mine)
        # Sending.
        self.credit = credit  # bytes that the peer still accepts
        self.queue: deque[memoryview] = deque()  # whole messages
        self.message: memoryview | None = None  # the one being cut into chunks
        self.offset = 0
        self.unsent = 0  # messages queued and not wholly handed to the transport
        self.end: bytes | None = None  # the End, to leave after the last message
        self.queued = False  # waits for its turn
        # Receiving.
        self.granted = granted  # bytes that this side still accepts
        self.owed = 0  # consumed, not yet given back
        self.parts: bytearray | None = None  # one buffer, because a peer may send tiny pieces
        self.left = 0
        self.cost = 0
