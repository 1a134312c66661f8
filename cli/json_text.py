"""JSON output of commands, for programs. Times are in RFC 3339."""

import json
from typing import Any

from common.errors import timestamp

_TIMES = {"since", "at"}
"""Fields that the hub and the agent send in seconds since the epoch. 0 means never."""


def json_text(state: Any) -> str:
    """The state as indented JSON, with times as `2026-11-21T09:12:03Z` and null for never."""
    return json.dumps(_with_times(state), indent=2)


def _with_times(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_times(item) for item in value]
    if isinstance(value, dict):
        return {name: _time(item) if name in _TIMES else _with_times(item) for name, item in value.items()}
    return value


def _time(value: Any) -> Any:
    if isinstance(value, int | float):
        return timestamp(value) if value else None
    return value
