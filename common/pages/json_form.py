"""The form of a page: dataclasses as JSON and back. Times are RFC 3339 in UTC, `2026-11-21T09:12:03Z`.

A field is a text, an integer, a bool, a time, a dataclass, or any JSON; or a list, a dict by texts or an optional of
these. A reader ignores fields that it does not know, so a newer peer may send more. A missing field gets its default; a
page without a field that has no default is refused.
"""

import json
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import UTC, datetime
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")


def time_of(seconds: float) -> datetime:
    """The time of so many seconds since the epoch, without its fraction."""
    return datetime.fromtimestamp(int(seconds), UTC)


def shown(time: datetime) -> str:
    """A time as people read it: as it is in JSON."""
    return f"{time:%Y-%m-%dT%H:%M:%SZ}"


def plain(page: Any) -> Any:
    if isinstance(page, str | int | float | NoneType):
        return page
    if isinstance(page, datetime):
        return shown(page)
    if isinstance(page, Mapping):
        return {name: plain(value) for name, value in page.items()}
    if isinstance(page, list):
        return [plain(value) for value in page]
    kind: type = type(page)
    return {name: plain(getattr(page, name)) for name in _names(kind)}


def encode(page: Any, *, indent: int | None = None) -> bytes:
    return json.dumps(plain(page), indent=indent).encode()


def decode(data: bytes, page: type[T]) -> T:
    """A page from its JSON. Raises ValueError if it is no JSON, or not this page."""
    return cast("T", _read(json.loads(data), page, "the page"))


@cache
def hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


@cache
def _names(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


def is_required(field: Field[Any]) -> bool:
    """Whether a page without this field is refused."""
    return field.default is MISSING and field.default_factory is MISSING


def _read(value: Any, hint: Any, name: str) -> Any:
    if get_origin(hint) is UnionType:
        (rest,) = set(get_args(hint)) - {NoneType}
        return None if value is None else _read(value, rest, name)
    if get_origin(hint) is list and isinstance(value, list):
        return [_read(item, get_args(hint)[0], f"an entry of {name}") for item in value]
    if get_origin(hint) is dict and isinstance(value, dict):
        return {key: _read(item, get_args(hint)[1], f"{name}.{key}") for key, item in value.items()}
    if is_dataclass(hint) and isinstance(value, dict):
        return _object(value, cast("type", hint), name)
    if hint is datetime and isinstance(value, str):
        return datetime.fromisoformat(value)
    if hint is not Any and type(value) is not hint:
        raise ValueError(f"{name} is no {getattr(hint, '__name__', hint)}")
    return value


def _object(value: Mapping[str, Any], kind: type, name: str) -> Any:
    found = {}
    types = hints(kind)
    for field in fields(kind):
        if field.name in value:
            found[field.name] = _read(value[field.name], types[field.name], field.name)
        elif is_required(field):
            raise ValueError(f"{name} has no {field.name}")
    return kind(**found)
