"""The metastore: the node's objects from the hub and its facts for the hub, on disk. The agent works from it alone.

Rules:

* It is `edge.db` in the state directory, by the rules of `common.store.database`. `edge.key` beside it unseals sealed
  bodies.
* Reads return the disk's content. One thread makes all writes (`common.store.database_writer`).
* The writer retries a write that fails. Until it works, the agent uses the earlier content, and confirms nothing to the
  hub. The same holds if the disk is full or read-only when the agent starts.
"""

import contextlib
import logging
import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from common.errors import SettingsError
from common.store.database import Schema, connect, connect_to_read, lock, open_database, refuse_newer
from common.store.database_writer import RETRY_S, DatabaseWriter, LateConnection
from edge.stores import fact_store, object_store
from edge.stores.fact_store import FactStore
from edge.stores.object_store import ObjectStore
from edge.stores.sealing import load_sealer

log = logging.getLogger("csi_bridge.edge.store")

# Where a copy has room when the disk is full.
_MEMORY_DISK = Path("/dev/shm")  # noqa: S108  # the directory made in it is nobody else's
SCHEMA = Schema("edge agent", ((*object_store.TABLES, *fact_store.TABLES),))  # the schema of `edge.db`


class Metastore:
    """The database file `edge.db`."""

    def __init__(
        self,
        state_dir: Path,
        *,
        full: bool = False,
        clock: Callable[[], float] = time.time,
        retry_s: float = RETRY_S,
    ) -> None:
        """Open or create the file. With `full` a power cut loses no acknowledged write."""
        path = state_dir / "edge.db"
        self._closed = False
        try:
            state_dir.mkdir(parents=True, exist_ok=True)
            self._lock_file = lock(state_dir / "edge.lock")
            try:
                refuse_newer(path, SCHEMA)  # first: it covers the key, which has no version of its own
                self.objects = ObjectStore(load_sealer(state_dir / "edge.key"), clock=clock)
                self.facts = FactStore()
                self._open(path, full=full, retry_s=retry_s)
            except BaseException:
                os.close(self._lock_file)
                raise
        except BlockingIOError:
            raise SettingsError("--state-dir", str(state_dir), "another edge agent is using it") from None
        except (OSError, sqlite3.Error) as error:
            raise SettingsError("--state-dir", str(state_dir), f"cannot be used: {error}") from error

    def _open(self, path: Path, *, full: bool, retry_s: float) -> None:
        connection: sqlite3.Connection | LateConnection
        opened: sqlite3.Connection | None = None
        try:
            connection = opened = open_database(path, SCHEMA, check=self._load, full=full)
            for file in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
                file.chmod(0o600)
            self._reader = connect_to_read(path)
        except (OSError, sqlite3.OperationalError) as error:
            if not path.is_file() or not path.stat().st_size:
                raise
            if opened is not None:
                opened.close()
            connection = LateConnection(
                str(error),
                connect=lambda: connect(path, SCHEMA, check=lambda _: None, full=full),
                connected=lambda: self._connected(path),
            )
            self._reader = self._read_all(path)
            log.error("%s cannot be written; the agent works from its earlier content: %s", path, error)  # noqa: TRY400  # not a bug
        self._writer = DatabaseWriter(
            path,
            connection,
            meanwhile="it is tried again, and the agent works from its earlier content",
            retry_s=retry_s,
        )
        self.objects.start(path, self._writer, self._reader)
        self.facts.start(self._writer)

    def _read_all(self, path: Path) -> sqlite3.Connection:
        # SQLite cannot read a WAL beside a file that it cannot write. So the file is copied to memory.
        with tempfile.TemporaryDirectory(dir=_MEMORY_DISK if _MEMORY_DISK.is_dir() else None) as directory:
            copy = Path(directory) / path.name
            shutil.copyfile(path, copy)
            if (journal := Path(f"{path}-wal")).exists():
                shutil.copyfile(journal, f"{copy}-wal")
            with contextlib.closing(connect(copy, SCHEMA, check=self._load)) as found:
                memory = sqlite3.connect(":memory:")
                found.backup(memory)
        return memory

    def _connected(self, path: Path) -> None:
        self._reader.close()
        self._reader = connect_to_read(path)
        self.objects.start(path, self._writer, self._reader)

    def _load(self, database: sqlite3.Connection) -> None:
        self.objects.load(database)
        self.facts.load(database)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._writer.end_retries()
        await self.objects.settle()
        await self.facts.flush()
        self._reader.close()  # before the writer, which then is the last one: it moves the journal into the file
        await self._writer.close()
        os.close(self._lock_file)

    @property
    def trouble(self) -> str:
        return self._writer.trouble
