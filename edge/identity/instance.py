"""An instance: the identity that tells this agent's machine from others of the same name, kept in its state directory.

It is a random id, made once, and a count of starts. The hub lets a later start of the same instance replace its old
link, and refuses another instance of the same name while the first one lives.

Rules:

* A machine that has an identity starts with it even if the start cannot be counted, as on a disk that is full or
  read-only: the machine must come back with its volumes. The hub takes the same count twice for a later start.
* A machine without an identity does not start if it cannot store one.
"""

import logging
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import SettingsError
from common.store.state_file import make_state_directory, read_state, write_state

log = logging.getLogger("csi_bridge.edge.instance")

_MOST_BOOTS = 2**53  # every reader of JSON counts exactly up to here, and it is far below the wire's limit

_LONGEST_ID = 64


@dataclass(frozen=True, slots=True)
class Instance:
    """This agent's identity: `id` is random and stays, `boot` grows by one at each start."""

    id: str
    boot: int


def next_boot(state_dir: Path) -> Instance:
    """Count one more start, on disk if possible, before the hub hears of it.

    An unreadable file becomes a new identity. The hub refuses the new identity while the old link lives, with a message
    that says so, and accepts it afterwards.
    """
    path = state_dir / "instance.json"
    last = _read(path)
    instance = Instance(last.id, last.boot + 1) if last is not None else Instance(secrets.token_hex(8), 1)
    try:
        make_state_directory(state_dir)
        write_state(path, {"id": instance.id, "boot": instance.boot})
    except OSError as error:
        if last is None:
            why = f"cannot be written: {error.strerror or error}"
            raise SettingsError("--state-dir", str(state_dir), why) from error
        log.error("%s cannot be written, and this start is not counted: %s", path, error.strerror or error)  # noqa: TRY400  # not a bug
    return instance


def _read(path: Path) -> Instance | None:
    try:
        return _instance(read_state(path, "edge agent"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError) as error:
        log.warning(
            "%s is unreadable (%s): this agent gets a new identity, which the hub refuses while a link of the old "
            "identity is up",
            path,
            (error.strerror if isinstance(error, OSError) else None) or type(error).__name__,
        )
        return None


def _instance(found: dict[str, Any]) -> Instance:
    instance = found["id"]
    boot = found["boot"]
    if not (isinstance(instance, str) and instance.isprintable() and 0 < len(instance) <= _LONGEST_ID):
        raise ValueError("id")
    if type(boot) is not int or not 0 <= boot < _MOST_BOOTS:
        raise ValueError("boot")
    return Instance(instance, boot)
