"""A batch: the writes that one read causes. They leave together, those of each socket in one system call.

A read may bring the messages of many calls, and each call writes at once. If more than one has come, the reader begins
a batch, and the writers keep their bytes until it ends.
"""

import threading
from collections.abc import Callable


class _Batch(threading.local):
    """The batch of the running callback. Each thread may have an event loop of its own."""

    writers: list[Callable[[], None]] | None = None


_batch = _Batch()


def begin() -> bool:
    """Begin a batch. Returns whether the caller has to `end` it: none was there."""
    if _batch.writers is not None:
        return False
    _batch.writers = []
    return True


def end() -> None:
    """End the batch: all that was kept leaves."""
    writers, _batch.writers = _batch.writers or (), None
    for write in writers:
        write()


def keeps(write: Callable[[], None], *, is_first: bool) -> bool:
    """Whether a writer keeps its bytes, because there is a batch, which calls `write` at its end.

    `is_first`: the writer has kept none before.
    """
    if _batch.writers is None:
        return False
    if is_first:
        _batch.writers.append(write)
    return True
