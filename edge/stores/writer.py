"""A store writer: the one thread that writes to the agent's database.

Rules:

* What is given together is one transaction.
* What fails (a full disk, a read-only one) is tried again until it works or the agent ends; it is logged once.
* Nothing waits here but what its callers hold: each of them gives the next transaction when the last one is done.
"""

import asyncio
import contextlib
import logging
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from common.errors import BridgeError

log = logging.getLogger("csi_bridge.edge.store")

_RETRY_S = 5.0
"""Between a write that failed and the next try: a disk is emptied by people."""

Statement = tuple[str, tuple[object, ...]]
"""SQL, and what stands in place of its question marks."""


class StoreWriter:
    """Writes to one database."""

    def __init__(
        self,
        path: Path,
        connection: sqlite3.Connection | None,
        *,
        connect: Callable[[], sqlite3.Connection],
        connected: Callable[[], None],
        trouble: str = "",
    ) -> None:
        """A writer that has written nothing.

        Args:
            path: the database's file, for messages.
            connection: its own, which it closes; None: the file could not be written when the agent started.
            connect: then makes one, in the writer's thread.
            connected: then is called, on the loop, when the first write was made.
            trouble: why it could not be written.
        """
        self._path = path
        self._connection = connection
        self._connect = connect
        self._connected: Callable[[], None] | None = connected if connection is None else None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="edge-store")
        self._closing = asyncio.Event()
        self.trouble = trouble
        """Why writing fails; empty while it works."""

    async def write(self, statements: Sequence[Statement]) -> bool:
        """Write these in one transaction. False: the agent ends, and they could not be written."""
        loop = asyncio.get_running_loop()
        while True:
            trouble = await loop.run_in_executor(self._thread, self._transact, statements)
            self._tell(trouble)
            if not trouble:
                if self._connected is not None:
                    self._connected()
                    self._connected = None
                return True
            if self._closing.is_set():
                return False
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), _RETRY_S)

    def end_retries(self) -> None:
        """From now on what fails is given up after one more try."""
        self._closing.set()

    def close(self) -> None:
        """Close the database. No write may be under way."""
        self.end_retries()
        self._thread.shutdown()
        if self._connection is not None:
            self._connection.close()

    def _transact(self, statements: Sequence[Statement]) -> str:
        """In the writer's thread: why it failed, or an empty text."""
        try:
            if self._connection is None:
                self._connection = self._connect()
            with self._connection:
                for sql, values in statements:
                    self._connection.execute(sql, values)
        except (BridgeError, OSError, sqlite3.Error) as error:
            return str(error) or type(error).__name__
        return ""

    def _tell(self, trouble: str) -> None:
        if trouble and trouble != self.trouble:
            log.error("cannot write %s; it is tried again, and the agent works from its earlier content: %s",
                      self._path, trouble)  # fmt: skip
        if self.trouble and not trouble:
            log.info("%s is written again, and nothing is missing in it", self._path)
        self.trouble = trouble
