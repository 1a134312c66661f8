"""The state directory of a hub: one hub at a time uses it."""

import os
import secrets
from hashlib import sha256
from pathlib import Path
from typing import Final

from common.errors import SettingsError
from common.store.database import lock
from common.store.state_file import make_state_directory

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_PLACE_CHARS: Final = 16


class StateDirectory:
    """A locked state directory."""

    def __init__(self, path: Path) -> None:
        """Make and lock it. Raises SettingsError if it cannot be used, or another hub uses it."""
        self.path = path
        try:
            make_state_directory(path)
            self._lock_file = lock(path / "hub.lock")
        except BlockingIOError:
            raise SettingsError("--state-dir", str(path), "another hub is using it") from None
        except OSError as error:
            raise SettingsError("--state-dir", str(path), f"cannot be written: {error}") from error

    def refuse_records(self) -> None:
        """Raise SettingsError if a hub without --kubeconfig has left its records, which would be forgotten."""
        if (self.path / "state.db").exists():
            self.close()
            why = (
                "has records of a hub without --kubeconfig (state.db), which this hub does not read: go on as before, "
                "or delete all volumes first and then move this file away"
            )
            raise SettingsError("--state-dir", str(self.path), why)

    @property
    def place(self) -> str:
        """Names the directory, for as long as this machine runs. A copy of it has another name."""
        found = os.fstat(self._lock_file)
        try:
            boot = _BOOT_ID.read_text()
        except OSError:
            boot = secrets.token_hex()
        return sha256(f"{boot} {found.st_dev} {found.st_ino}".encode()).hexdigest()[:_PLACE_CHARS]

    def close(self) -> None:
        os.close(self._lock_file)
