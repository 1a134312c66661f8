"""A line writer: a thread that formats lines and writes them to a stream in blocks, so that nobody waits for a stream.

Rules:

* The first line after a pause is written at once, and then one block every `BLOCK_S`. A killed process may lose the
  lines of this time.
* Lines keep their order.
* `add` never blocks. While the stream takes nothing, `MOST_LINES` lines wait, and the others are lost.
* The next block that the stream takes ends with the number of lost lines.
"""

import os
import select
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final, Generic, TextIO, TypeVar

Line = TypeVar("Line")

BLOCK_S: Final = 0.05  # a thread that wakes for each line takes the interpreter from the event loop each time
MOST_LINES: Final = 10_000  # of about 300 bytes. The longest ones, with a vendor's message, have 4 KiB: 40 MB then wait
FLUSH_S: Final = 2.0  # the longest wait for a stream that takes nothing, at the end of the process


class LineWriter(Generic[Line]):
    """Writes lines of one kind to one stream."""

    def __init__(self, stream: TextIO | None, text_of: Callable[[Line], str], lost_text: Callable[[int], str]) -> None:
        """Start the thread, which formats lines with `text_of`, without their line feed.

        `lost_text` formats the line that tells how many were lost since the last such line. Without a stream, all are.
        """
        self._refused = self._failed = self._told = 0
        self._stream = stream
        self._text_of = text_of
        self._lost_text = lost_text
        self._lines: SimpleQueue[Line | threading.Event | None] = SimpleQueue()
        self._hurry = threading.Event()
        self._thread = threading.Thread(target=self._run, name="log lines", daemon=True)
        self._thread.start()

    @property
    def lost_lines(self) -> int:
        return self._refused + self._failed

    def add(self, line: Line) -> None:
        if self._lines.qsize() < MOST_LINES:
            self._lines.put(line)
        else:
            self.lose()

    def lose(self) -> None:
        self._refused += 1

    def flush(self) -> None:
        """Wait until the lines so far are written, for `FLUSH_S` at most."""
        written = threading.Event()
        self._lines.put(written)
        self._hurry.set()
        written.wait(FLUSH_S * self._thread.is_alive())  # not at all if nobody would set it

    def close(self) -> None:
        """End the thread once it has written everything, and wait for it as `flush` does."""
        self._lines.put(None)
        self._hurry.set()
        self._thread.join(FLUSH_S)

    def _run(self) -> None:
        has_ended = False
        while not has_ended:
            found = [self._lines.get()]
            self._hurry.clear()
            found += [self._lines.get() for _ in range(self._lines.qsize())]  # nobody else takes any
            has_ended = None in found
            self._write_block([it for it in found if it is not None and not isinstance(it, threading.Event)])
            for it in found:
                if isinstance(it, threading.Event):
                    it.set()
            if not has_ended:
                self._hurry.wait(BLOCK_S)

    def _write_block(self, lines: list[Line]) -> None:
        texts = []
        for line in lines:
            try:
                texts.append(self._text_of(line))
            except Exception:  # noqa: BLE001  # as in logging: a line that cannot be formatted costs itself only
                self._failed += 1
        if not texts:
            return
        count = len(texts)
        lost = self.lost_lines
        if lost > self._told:
            texts.append(self._lost_text(lost - self._told))
        try:
            self._put("\n".join([*texts, ""]))
        except (OSError, ValueError):  # the stream fails; it is closed, or there is none
            self._failed += count
        else:
            self._told = lost

    def _put(self, text: str) -> None:
        # To the file itself, past Python's buffer: a thread that hangs with its lock would hang the process.
        stream = self._stream
        if stream is None:
            raise ValueError("there is no stream")
        try:
            file = stream.fileno()
        except OSError:  # it is kept in memory
            stream.write(text)
            return
        data = memoryview(text.encode(stream.encoding, "backslashreplace"))
        while data:
            try:
                data = data[os.write(file, data) :]
            except BlockingIOError:  # another process that shares the stream has made it so
                select.select([], [file], [])
