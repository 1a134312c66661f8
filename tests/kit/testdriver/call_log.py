"""The call log: a JSON line when a call begins and one when it ends, so that tests can prove what was asked for.

Only names, ids and paths of a request are written; never a secret, a parameter, a context or a mount flag. A line is
one write to a file opened for appending: lines of several processes do not mix, and those of a killed one are there.
"""

import itertools
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from google.protobuf.message import Message

FIELDS = (
    "name",
    "volume_id",
    "snapshot_id",
    "source_volume_id",
    "base_snapshot_id",
    "target_snapshot_id",
    "node_id",
    "staging_target_path",
    "target_path",
    "volume_path",
)
"""The request's fields that are written, all of them harmless strings."""

MADE = {"volume": "volume_id", "snapshot": "snapshot_id"}
"""The answer's fields that hold what was made, and where its id is."""


@dataclass(slots=True)
class Call:
    """One call: `fields` are names, ids and paths of the request, and the id of what the answer says was made.

    Times are seconds since the epoch; `end` is None for ever if the process was killed.
    """

    method: str
    fields: dict[str, str] = field(default_factory=dict)
    start: float = 0.0
    end: float | None = None
    code: str = ""


class CallLog:
    def __init__(self, file: Path | None) -> None:
        self._file = (
            None if file is None else os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        )
        self._numbers = itertools.count(1)

    @contextmanager
    def noting(self, method: str, request: Message) -> Iterator[Call]:
        """Note the begin and the end of a call. The body sets `code`, and may add to `fields`."""
        call = Call(method, _harmless(request), time.time(), code="CANCELLED")  # if the body does not come to its end
        number = next(self._numbers)
        self._write(number, call, event="start", at=call.start)
        try:
            yield call
        finally:
            call.end = time.time()
            self._write(number, call, event="end", at=call.end)

    def _write(self, number: int, call: Call, *, event: str, at: float) -> None:
        if self._file is None:
            return
        line = {"event": event, "pid": os.getpid(), "call": number, "time": at, "method": call.method, **call.fields}
        if event == "end":
            line["code"] = call.code
        os.write(self._file, (json.dumps(line) + "\n").encode())


def made(response: Message) -> dict[str, str]:
    """The id of what an answer says was made; empty for other answers."""
    known = response.DESCRIPTOR.fields_by_name
    return {key: getattr(getattr(response, name), key) for name, key in MADE.items() if name in known}


def read_calls(file: Path) -> list[Call]:
    """The calls of a log, in the order in which they began."""
    calls: dict[tuple[int, int], Call] = {}
    whole_lines, _, _ = file.read_text().rpartition("\n")  # the last one is perhaps being written
    for text in whole_lines.splitlines():
        line = json.loads(text)
        key = line.pop("pid"), line.pop("call")
        event, at, method, code = line.pop("event"), line.pop("time"), line.pop("method"), line.pop("code", "")
        if event == "start":
            calls[key] = Call(method, line, at)
        else:
            call = calls[key]
            call.fields, call.end, call.code = line, at, code
    return list(calls.values())


def _harmless(request: Message) -> dict[str, str]:
    known = request.DESCRIPTOR.fields_by_name
    found = {name: getattr(request, name) for name in FIELDS if name in known}
    return {name: value for name, value in found.items() if value}
