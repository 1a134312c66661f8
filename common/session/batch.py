"""A batch: the writes that one read causes. They leave together, those of each socket in one system call.

A read may bring the messages of many calls, and each call writes at once. If a read brings several messages, the reader
begins a batch. Then a writer keeps its bytes, and appends a function to `current.writers`, which writes them at the
batch's end.
"""

import threading
from collections.abc import Callable


class _Batch(threading.local):  # each thread may have an event loop of its own
    # The batch of the running callback. Without one, `writers` is None, and writers write at once.

    writers: list[Callable[[], None]] | None = None


current = _Batch()


def begin() -> bool:
    """Begin a batch. Returns whether the caller has to `end` it: none was there."""
    if current.writers is not None:
        return False
    current.writers = []
    return True


def end() -> None:
    """End the batch: all that was kept leaves. Raises the last error of a writer, after the others have written."""
    writers = current.writers or ()
    current.writers = None
    failure = None
    for write in writers:
        try:
            write()
        except Exception as error:  # noqa: BLE001  # raised below: the other writers have other sockets
            failure = error
    if failure is not None:
        raise failure
