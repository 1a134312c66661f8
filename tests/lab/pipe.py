"""A pipe: one direction of one connection through the lab's link, with the delay, rate and buffer of a real line.

Bytes that are read depart one after the other at the line's rate, and arrive `delay_s` after they departed. What has
not departed yet sits in a buffer like a modem's; when it is full nothing more is read, and the sender's kernel, and
then the sender, feel it. `Tally` counts, for one connection, the bytes and the turns of the conversation.
"""

import asyncio
import socket
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Literal

Way = Literal["up", "down"]  # `up` is from whoever dialled the link to the link's target

PACKET_BYTES = 1448  # what one Ethernet packet carries of TCP: the grain of a line with a rate

FAST_READ_BYTES = 65536
FAST_LINE_BYTES = 8 * 1024 * 1024  # how much a line without a rate holds while it is delayed: 320 Mbit/s at 200 ms


@dataclass
class Line:
    """The properties of the line; shared by every pipe of a link, and may change at any time."""

    delay_s: float = 0.0  # from departure to arrival, each way
    rate_bits_s: float | None = None  # how fast bytes depart, each way; None is as fast as they come
    buffer_bytes: int = 16 * 1024  # how much may wait to depart, each way; without a rate nothing waits

    @property
    def read_bytes(self) -> int:
        return PACKET_BYTES if self.rate_bits_s else FAST_READ_BYTES

    @property
    def holds_bytes(self) -> int:
        """The most that may be in one direction of one connection: the buffer and what is on its way."""
        if self.rate_bits_s is None:
            return FAST_LINE_BYTES
        return self.buffer_bytes + int(self.rate_bits_s / 8 * self.delay_s)


@dataclass
class Tally:
    """What went through one connection.

    A turn is counted by cause, as a Lamport clock does: bytes are one turn later than the latest bytes that their
    sender had received before. Bytes that cross each other are thus one turn, not two, and a question with its answer
    is two turns, however many chunks each has. What is sent while something arrives counts as caused by it: only a
    conversation that waits for its answers has a meaningful number.
    """

    bytes_up: int = 0  # read from the dialling side
    bytes_down: int = 0  # read from the target
    turns: int = 0  # the longest chain of bytes that could only be sent after others had arrived
    _arrived: dict[Way, int] = field(default_factory=lambda: {"up": 0, "down": 0})

    def read(self, way: Way, size: int) -> int:
        """Count bytes that entered the line. Returns their turn."""
        if way == "up":
            self.bytes_up += size
        else:
            self.bytes_down += size
        turn = self._arrived["down" if way == "up" else "up"] + 1
        self.turns = max(self.turns, turn)
        return turn

    def arrived(self, way: Way, turn: int) -> None:
        """Note that bytes of a turn are about to reach the other side."""
        self._arrived[way] = max(self._arrived[way], turn)


class Pipe:
    """Carries bytes from `source` to `sink`, both non-blocking sockets, until the end of `source`.

    While `flows` is not set nothing moves: bytes on the line stay there, and nothing is read.
    """

    def __init__(
        self, source: socket.socket, sink: socket.socket, *, way: Way, line: Line, tally: Tally, flows: asyncio.Event
    ) -> None:
        self._source, self._sink = source, sink
        self._way, self._line, self._tally, self._flows = way, line, tally, flows
        self._on_line: deque[tuple[float, int, bytes]] = deque()  # (arrives at, turn, bytes); b"" is the end
        self._on_line_bytes = 0
        self._line_free_at = 0.0
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Carry until the end of the source has reached the sink. Raises OSError when either side resets."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._take(), name=f"lab take {self._way}")
            tasks.create_task(self._give(), name=f"lab give {self._way}")

    async def _take(self) -> None:
        loop = asyncio.get_running_loop()
        data = b"first"
        while data:
            await self._flows.wait()
            await self._has_room()
            data = await loop.sock_recv(self._source, self._line.read_bytes)
            turn = self._tally.read(self._way, len(data)) if data else 0
            self._on_line.append((self._departs(len(data)) + self._line.delay_s, turn, data))
            self._on_line_bytes += len(data)
            self._changed.set()

    async def _has_room(self) -> None:
        if self._line.rate_bits_s is not None:
            await _until(self._line_free_at - self._line.buffer_bytes * 8 / self._line.rate_bits_s)
        while self._on_line_bytes >= self._line.holds_bytes:  # the sink does not take what has arrived
            self._changed.clear()
            await self._changed.wait()

    def _departs(self, size: int) -> float:
        now = time.monotonic()
        if self._line.rate_bits_s is None:
            return now
        self._line_free_at = max(now, self._line_free_at) + size * 8 / self._line.rate_bits_s
        return self._line_free_at

    async def _give(self) -> None:
        loop = asyncio.get_running_loop()
        data = b"first"
        while data:
            while not self._on_line:
                self._changed.clear()
                await self._changed.wait()
            arrives_at, turn, data = self._on_line[0]
            await _until(arrives_at)
            await self._flows.wait()
            self._on_line.popleft()
            self._tally.arrived(self._way, turn)
            await loop.sock_sendall(self._sink, data)
            self._on_line_bytes -= len(data)
            self._changed.set()
        self._sink.shutdown(socket.SHUT_WR)


async def _until(moment: float) -> None:
    """Sleep until `moment` of the monotonic clock. Never too short: a loop's own clock may lag behind."""
    while (left_s := moment - time.monotonic()) > 0:  # noqa: ASYNC110  # a moment is no event
        await asyncio.sleep(left_s)
