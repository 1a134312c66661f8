"""A state file: a small JSON object in a state directory, with the version of its form.

A process that finds a newer form refuses to start and leaves the file as it is. The first change of a form brings the
step from version 1 with it.
"""

import json
from pathlib import Path
from typing import Any, Final

from common.errors import NewerState
from common.files import replace_file

VERSION: Final = 1

_KEY = "version"


def read_state(path: Path, owner: str) -> dict[str, Any]:
    """Read a state file's object. `owner` is the program that writes it, for messages: `edge agent`.

    Raises:
        NewerState: a newer program wrote it.
        OSError: it cannot be read.
        ValueError: it is no JSON object with a version.
    """
    try:
        content: Any = json.loads(path.read_bytes())
    except RecursionError as error:
        raise ValueError(type(error).__name__) from error
    if not isinstance(content, dict):
        raise ValueError("it is no object")  # noqa: TRY004  # what a file holds is a value
    body: dict[str, Any] = content
    version = body.get(_KEY)
    if type(version) is not int or version < 1:
        raise ValueError(f"its version is {version!r}")
    if version > VERSION:
        raise NewerState(path, owner, version, VERSION)
    return body


def write_state(path: Path, body: dict[str, Any], *, mode: int | None = None) -> None:
    """Replace a state file. Its content then survives a power cut. OSError: the old content stays."""
    content = json.dumps({**body, _KEY: VERSION}, indent=1, sort_keys=True)
    replace_file(path, content.encode(), durable=True, mode=mode)
