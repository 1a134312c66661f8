"""A line writer: a thread that formats lines and writes them to a stream in blocks, so that nobody waits for a stream.

Rules:

* The first line after a pause is written at once, and then one block every `BLOCK_S`. A killed process may lose the
  lines of this time.
* Lines keep their order.
* `add` never blocks. While the stream takes nothing, `MOST_LINES` lines wait, and the others are lost.
* The next block that the stream takes ends with the number of lost lines.
* `flush` ends the thread once it has written everything. The next line starts another thread.
"""

import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Final, Generic, TextIO, TypeVar

Line = TypeVar("Line")

BLOCK_S: Final = 0.05
"""A thread that wakes for each line takes the interpreter from the event loop each time."""

MOST_LINES: Final = 10_000
"""One line has about 300 bytes. The longest ones, which carry a vendor's message, have 4 KiB: 40 MB then wait."""

FLUSH_S: Final = 2.0
"""The longest wait for a stream that takes nothing, at the end of the process."""


class LineWriter(Generic[Line]):
    """Writes lines of one kind to one stream."""

    def __init__(self, stream: TextIO | None, text_of: Callable[[Line], str], lost_text: Callable[[int], str]) -> None:
        """A writer without a thread yet.

        Args:
            stream: the output; None: all lines are lost.
            text_of: formats a line, without its line feed. The thread calls it.
            lost_text: formats the line that tells how many lines were lost since the last such line.
        """
        self._stream = stream
        self._text_of = text_of
        self._lost_text = lost_text
        self._lines: deque[Line] = deque()
        self._news = threading.Event()
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock = threading.RLock()  # held while a thread starts or ends
        self._refused = self._failed = self._told = 0

    @property
    def lost_lines(self) -> int:
        """How many lines were lost since the start."""
        return self._refused + self._failed

    def add(self, line: Line) -> None:
        """Hand a line to the thread, or lose it."""
        if len(self._lines) >= MOST_LINES:
            self._refused += 1
            return
        self._lines.append(line)
        if not self._news.is_set():
            self._wake()

    def flush(self) -> None:
        """Wait until everything is written, for `FLUSH_S` at most."""
        with self._lock:
            thread = self._thread
            if thread is None:
                return
            self._ending.set()
            self._news.set()
        thread.join(FLUSH_S)

    def _wake(self) -> None:
        self._news.set()
        with self._lock:
            if self._thread is not None and self._thread.is_alive():
                return
            self._ending.clear()
            self._thread = threading.Thread(target=self._run, name="log lines", daemon=True)
            try:
                self._thread.start()
            except RuntimeError:  # at the very end of the process no thread can start
                self._thread = None
                self._news.clear()
                self._write_block()

    def _run(self) -> None:
        while True:
            self._news.wait()
            self._news.clear()
            self._write_block()
            if self._ending.wait(BLOCK_S) and self._has_ended():
                return

    def _has_ended(self) -> bool:
        with self._lock:
            self._news.clear()  # before the look at the lines: from here on `add` wakes another thread
            if self._lines:
                self._news.set()
                return False
            self._thread = None
            return True

    def _write_block(self) -> None:
        texts = self._take()
        if not texts:
            return
        count, lost = len(texts), self.lost_lines
        if lost > self._told:
            texts.append(self._lost_text(lost - self._told))
        try:
            self._put("\n".join([*texts, ""]))
        except (OSError, ValueError):  # the stream fails; it is closed, or there is none
            self._failed += count
        else:
            self._told = lost

    def _take(self) -> list[str]:
        texts = []
        for _ in range(len(self._lines)):
            try:
                texts.append(self._text_of(self._lines.popleft()))
            except Exception:  # noqa: BLE001  # as in logging: a line that cannot be formatted costs itself only
                self._failed += 1
        return texts

    def _put(self, text: str) -> None:
        """Write to the file itself, past Python's buffer: a thread that hangs with its lock would hang the process."""
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
            written = os.write(file, data)
            data = data[written:]
