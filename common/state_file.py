"""A state file: a small JSON object in a state directory, with the version of its form.

Rules:

* `version` says which form the object has.
* A process that finds a newer form refuses to start and leaves the file as it is. It brings an older form up to date
  when it reads it, and writes the newest form when it writes next.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import NewerState
from common.files import replace_file

_VERSION = "version"

Step = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Form:
    """The form of a state file, and how to reach it from every earlier one.

    Each step turns the object of a version into the next version's; the first one begins with version 1. A released
    step never changes. For an unknown object it may raise ValueError, KeyError, TypeError or AttributeError.
    """

    owner: str  # the program that writes the file, for messages: `edge agent`
    steps: tuple[Step, ...] = ()

    @property
    def version(self) -> int:
        return 1 + len(self.steps)


def read_state(path: Path, form: Form) -> dict[str, Any]:
    """Read a state file's object, in the newest form.

    Raises:
        NewerState: a newer program wrote it.
        OSError: it cannot be read.
        ValueError: it is no JSON object, or not the content that a step expects.
    """
    try:
        content: Any = json.loads(path.read_bytes())
        if not isinstance(content, dict):
            raise ValueError("it is no object")  # noqa: TRY004  # what a file holds is a value
        body: dict[str, Any] = content
        version = body.get(_VERSION)
        if type(version) is not int or version < 1:
            raise ValueError(f"its version is {version!r}")
        if version > form.version:
            raise NewerState(path, form.owner, version, form.version)
        for step in form.steps[version - 1 :]:
            body = step(body)
    except (TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(type(error).__name__) from error
    return body


def write_state(path: Path, form: Form, body: dict[str, Any], *, mode: int | None = None) -> None:
    """Replace a state file. Its content then survives a power cut. OSError: the old content stays."""
    content = json.dumps({**body, _VERSION: form.version}, indent=1, sort_keys=True)
    replace_file(path, content.encode(), durable=True, mode=mode)
