"""The fields of an object, read by name with a check of their types. Errors name the field, never its value.

As for Kubernetes, a field that is null counts as missing.
"""

import re
from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from typing import Any, Final, NoReturn

from common.objects.quantity import parse_bytes
from common.parsers import is_driver_name, is_name
from common.wording import shorten

Body = Mapping[str, Any]  # One object, parsed. It is shared and must not be changed.

Path = tuple[str | int, ...]

_LARGEST_NUMBER: Final = 2**63 - 1  # the largest number of Kubernetes and protobuf: a larger one would fail on the node
_SHOWN_CHARS: Final = 60  # the longest part of a key that an error shows: the writer of the object chooses the key
LONGEST_LABEL_CHARS: Final = 63
_UID: Final = re.compile(r"[A-Za-z0-9]([-._A-Za-z0-9]{0,126}[A-Za-z0-9])?")


def is_dns_label(text: str) -> bool:
    """Whether a text is a DNS label, like the names of namespaces."""
    return "." not in text and len(text) <= LONGEST_LABEL_CHARS and is_name(text)


def is_uid(text: str) -> bool:
    """Whether a text may be a UID, of Kubernetes or of a person: safe as the name of a directory."""
    return _UID.fullmatch(text) is not None


def part(body: Body, *names: str) -> Body:
    for name in names:
        body = body.get(name) or {}
    return body


def condition_of(status: Body, kind: str) -> Body:
    return next((it for it in status.get("conditions") or () if it.get("type") == kind), {})


class FieldError(ValueError):
    """A field is wrong: `path` leads to it, `why` is the rest of the sentence."""

    def __init__(self, path: Path, why: str) -> None:
        self.path = path
        self.why = why
        super().__init__(f"{spell(path)} {why}".lstrip())


def spell(path: Path) -> str:
    """`spec.volumes[0].name`."""
    steps = (f"[{step}]" if isinstance(step, int) else f".{shorten(step, _SHOWN_CHARS)}" for step in path)
    return "".join(steps).removeprefix(".")


class Fields:
    """One mapping of an object, with its path in the object.

    Every reader raises FieldError if the field has another type, or if it is missing and `required`.
    """

    def __init__(self, body: Body, path: Path = ()) -> None:
        self.body = body
        self.path = path

    def refuse(self, name: str, why: str) -> NoReturn:
        raise FieldError((*self.path, name), why)

    def has(self, name: str) -> bool:
        return self.body.get(name) is not None

    def text(self, name: str, *, required: bool = False, allowed: Collection[str] = ()) -> str:
        """A text. If it is required, it must not be empty; if `allowed` is given, it must be one of these."""
        value = self._value(name, str, "a text (in quotes, if it looks like something else)", required=required)
        if required and value == "":
            self.refuse(name, "is empty")
        if value and allowed and value not in allowed:
            self.refuse(name, f"must be one of {', '.join(allowed)}")
        return value or ""

    def name(self, name: str, *, required: bool = False) -> str:
        wanted = "must be a name: lower-case letters, digits, '-' and '.', at most 253 of them"
        return self._word(name, is_name, wanted, required=required)

    def label(self, name: str, *, required: bool = False) -> str:
        wanted = "must be a name: lower-case letters, digits and '-', at most 63 of them"
        return self._word(name, is_dns_label, wanted, required=required)

    def uid(self, name: str) -> str:
        wanted = "must be a UID: letters, digits, '-', '.' and '_', at most 128 of them"
        return self._word(name, is_uid, wanted, required=False)

    def driver(self, name: str) -> str:
        wanted = "must be a CSI driver's name: letters, digits, '-' and '.', at most 63 of them"
        return self._word(name, is_driver_name, wanted, required=True)

    def _word(self, name: str, is_right: Callable[[str], bool], wanted: str, *, required: bool) -> str:
        value = self.text(name, required=required)
        if value and not is_right(value):
            self.refuse(name, wanted)
        return value

    def flag(self, name: str) -> bool | None:
        value = self._value(name, bool, "true or false", required=False)
        return None if value is None else bool(value)

    def number(self, name: str) -> int | None:
        value = self._value(name, int, "a whole number", required=False)
        if value is not None and (isinstance(value, bool) or not 0 <= value <= _LARGEST_NUMBER):
            self.refuse(name, "must be a whole number that is not negative and has at most 63 bits")
        return None if value is None else int(value)

    def time(self, name: str) -> str:
        value = self.text(name)
        try:
            zone = datetime.fromisoformat(value).tzinfo if value else True
        except ValueError:
            zone = None
        if not zone:
            self.refuse(name, "must be a time with its zone, such as 2030-01-31T12:00:00Z")
        return value

    def quantity(self, name: str, *, required: bool = False) -> int | None:
        if not self.has(name) and not required:
            return None
        value = self.body.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            value = str(value)
        if value is None:
            self.refuse(name, "is missing")
        if not isinstance(value, str):
            self.refuse(name, "must be a quantity such as 1Gi")
        try:
            return parse_bytes(value)
        except ValueError:
            self.refuse(name, "must be a quantity such as 1Gi, from 0 to below 8Ei")

    def part(self, name: str, *, required: bool = False) -> "Fields":
        value = self._value(name, dict, "a mapping", required=required)
        return Fields(value or {}, (*self.path, name))

    def parts(self, name: str, *, required: bool = False) -> list["Fields"]:
        found = []
        for number, item in enumerate(self._list(name, required=required)):
            if not isinstance(item, dict):
                raise FieldError((*self.path, name, number), "must be a mapping")
            found.append(Fields(item, (*self.path, name, number)))
        return found

    def texts(self, name: str, *, required: bool = False, allowed: Collection[str] = ()) -> list[str]:
        found = self._list(name, required=required)
        for number, item in enumerate(found):
            if not isinstance(item, str):
                raise FieldError((*self.path, name, number), "must be a text")
            if allowed and item not in allowed:
                raise FieldError((*self.path, name, number), f"must be one of {', '.join(allowed)}")
        return found

    def text_map(self, name: str) -> Mapping[str, str]:
        part = self.part(name)
        for key, value in part.body.items():
            if not isinstance(value, str):
                part.refuse(key, "must be a text (in quotes, if it looks like something else)")
        return part.body

    def _list(self, name: str, *, required: bool) -> list[Any]:
        value = self._value(name, list, "a list", required=required)
        if required and not value:
            self.refuse(name, "is empty")
        return value or []

    def _value(self, name: str, kind: type, wanted: str, *, required: bool) -> Any:
        value = self.body.get(name)
        if value is None:
            if required:
                self.refuse(name, "is missing")
            return None
        if not isinstance(value, kind):
            self.refuse(name, f"must be {wanted}")
        return value
