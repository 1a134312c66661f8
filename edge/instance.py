"""An instance: the identity that tells this agent's machine from another of the same name, kept in its state directory.

A random id made once, and a count of starts. The hub lets a later start of the same instance replace its old link, and
refuses another instance of the same name while the first one lives.

Rules:

* A machine that has an identity starts with it even if the start cannot be counted, as on a disk that is full or
  read-only: it must come back with its volumes. The hub takes the same count twice for a later start.
* A machine that has none yet, and cannot keep one, does not start.
"""

import json
import logging
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import SettingsError

log = logging.getLogger("csi_bridge.edge.instance")

_MOST_BOOTS = 2**53
"""What every reader of JSON still counts exactly, and far below what fits the wire."""

_LONGEST_ID = 64


@dataclass(frozen=True, slots=True)
class Instance:
    """Who this agent is: `id` is random and stays, `boot` grows by one at each start."""

    id: str
    boot: int


def next_boot(state_dir: Path) -> Instance:
    """Count one more start, on disk if that can be, before anything is told to the hub.

    An unreadable file becomes a new identity: the hub then refuses it for as long as the old link lives, which says
    what is wrong, and takes it afterwards.

    Raises:
        SettingsError: there is no identity, and the directory cannot be written.
    """
    path = state_dir / "instance.json"
    last = _read(path)
    instance = Instance(last.id, last.boot + 1) if last is not None else Instance(secrets.token_hex(8), 1)
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
        _write(path, json.dumps({"id": instance.id, "boot": instance.boot}))
    except OSError as error:
        if last is None:
            why = f"cannot be written: {error.strerror or error}"
            raise SettingsError("--state-dir", str(state_dir), why) from error
        log.error("%s cannot be written, and this start is not counted: %s", path, error.strerror or error)  # noqa: TRY400  # not a bug
    return instance


def _read(path: Path) -> Instance | None:
    try:
        return _instance(json.loads(path.read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        log.warning(
            "%s is unreadable (%s): this agent gets a new identity, which the hub refuses while a link of the old "
            "identity is up",
            path,
            (error.strerror if isinstance(error, OSError) else None) or type(error).__name__,
        )
        return None


def _instance(found: Any) -> Instance:
    instance, boot = found["id"], found["boot"]
    if not (isinstance(instance, str) and instance.isprintable() and 0 < len(instance) <= _LONGEST_ID):
        raise ValueError("id")
    if type(boot) is not int or not 0 <= boot < _MOST_BOOTS:
        raise ValueError("boot")
    return Instance(instance, boot)


def _write(path: Path, text: str) -> None:
    """The old file or the new one, never half of it, also after a power cut."""
    new = path.with_suffix(".new")
    with new.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
