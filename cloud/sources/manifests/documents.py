"""The documents of a YAML file, each with the lines of its fields; and a writer of YAML.

Rules:

* The values are those of JSON, read as `kubectl` reads them (YAML 1.1 as in Go: `yes` is a boolean, a time of day a
  text).
* Only data: no tags, no anchors, no merge keys, no repeated keys, and only texts as keys. So a small file cannot
  become a large value.
* The depth is limited. For this the module reads the parser's events. PyYAML's own composer would crash the process at
  a depth of some ten thousand.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import yaml

from cloud.kinds.rules.fields import Path
from common.wording import shorten

_DEEPEST: Final = 100

_LARGEST_INTEGER: Final = 2**64  # Kubernetes has no larger one, and Python prints none with thousands of digits

_SHOWN_CHARS: Final = 60

_STR = "tag:yaml.org,2002:str"
_MERGE = "<<"


class DocumentError(ValueError):
    """The file cannot be read. `line` counts from 1; `why` is a sentence without values of the file."""

    def __init__(self, line: int, why: str) -> None:
        self.line = line
        self.why = why
        super().__init__(f"line {line}: {why}")


@dataclass(frozen=True, slots=True)
class Position:
    """The place of a value: its line, and the places of its parts, by key or number."""

    line: int
    parts: "Mapping[str | int, Position]"

    def find(self, path: Path) -> "Position":
        """The place of a part; if it is missing, the place of the part around it."""
        place = self
        for step in path:
            if step not in place.parts:
                break
            place = place.parts[step]
        return place


_Parts = dict[str | int, Position]


@dataclass(frozen=True, slots=True)
class Document:
    """One document: its value and its place."""

    value: Any
    place: Position


def read_yaml(text: str) -> list[Document]:
    """The documents of a YAML file that are not empty. Raises DocumentError if it is no YAML, or breaks the rules."""
    parser = yaml.CSafeLoader(text)
    composer = _Composer(parser)
    try:
        parser.get_event()  # the stream's start
        found = []
        while parser.check_event(yaml.DocumentStartEvent):
            parser.get_event()
            found.append(composer.document())
            parser.get_event()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise DocumentError(mark.line + 1 if mark else 1, _in_words(error)) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise DocumentError(line, "there is a control character, which YAML does not allow") from None
    finally:
        parser.dispose()
    return [document for document in found if document.value is not None]


def write_yaml(value: Mapping[str, Any]) -> bytes:
    text = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False, width=120)
    return text.encode()


class _Dumper(yaml.CSafeDumper):
    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002  # the library's signature
        return True


# The types of unquoted texts; any other one is a text. Nodes choose texts, too, and a long match blocks every thread.
# So no pattern may match the same digits in two ways, which would take quadratic time.
_PLAIN: Final = (
    ("null", re.compile(r"~|null|Null|NULL|")),
    ("bool", re.compile(r"true|True|TRUE|false|False|FALSE|yes|Yes|YES|no|No|NO|on|On|ON|off|Off|OFF")),
    ("int", re.compile(r"[-+]?(?:0|[1-9][0-9]*|0[xX][0-9a-fA-F]+|0o?[0-7]+|0b[01]+)")),
    ("float", re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")),
    ("float", re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")),
)

_MAY_BE_PLAIN: Final = frozenset("~nNtTfFyYoO-+.0123456789")  # the first characters of these

for _name, _pattern in _PLAIN:
    _Dumper.add_implicit_resolver(f"tag:yaml.org,2002:{_name}", re.compile(f"(?:{_pattern.pattern})$"), None)


class _Composer:
    def __init__(self, parser: yaml.CSafeLoader) -> None:
        self._next: Callable[[], Any] = parser.get_event

    def document(self) -> Document:
        return Document(*self._value(self._next(), 0))

    def _value(self, event: Any, depth: int) -> tuple[Any, Position]:
        line = event.start_mark.line + 1
        if event.anchor is not None:  # an alias has one, too
            raise DocumentError(line, "it has an anchor or an alias; write the value out")
        if depth >= _DEEPEST:
            raise DocumentError(line, f"it is nested more than {_DEEPEST} levels deep")
        if isinstance(event, yaml.ScalarEvent):
            return _scalar(event, line), Position(line, {})
        if event.tag is not None:
            raise DocumentError(line, "it has a tag; only plain data is read")
        value, parts = self._mapping(depth) if isinstance(event, yaml.MappingStartEvent) else self._sequence(depth)
        return value, Position(line, parts)

    def _mapping(self, depth: int) -> tuple[Any, _Parts]:
        values: dict[str, Any] = {}
        places: _Parts = {}
        while not isinstance(event := self._next(), yaml.MappingEndEvent):
            line = event.start_mark.line + 1
            key = self._key(event, line)
            if key in values:
                raise DocumentError(line, f"the key {shorten(key, _SHOWN_CHARS)!r} stands there twice")
            values[key], place = self._value(self._next(), depth + 1)
            places[key] = Position(line, place.parts)
        return values, places

    def _key(self, event: Any, line: int) -> str:
        key = _scalar(event, line) if isinstance(event, yaml.ScalarEvent) else None
        if not isinstance(key, str):
            raise DocumentError(line, "a key must be a text (in quotes, if it looks like something else)")
        if key == _MERGE:
            raise DocumentError(line, "merge keys (<<) are not read")
        return key

    def _sequence(self, depth: int) -> tuple[Any, _Parts]:
        values: list[Any] = []
        places: _Parts = {}
        while not isinstance(event := self._next(), yaml.SequenceEndEvent):
            value, places[len(values)] = self._value(event, depth + 1)
            values.append(value)
        return values, places


def _scalar(event: Any, line: int) -> str | int | float | bool | None:
    text = str(event.value)
    if event.tag == _STR or (event.tag in (None, "!") and not event.implicit[0]):
        return text
    if event.tag not in (None, "!"):
        raise DocumentError(line, "it has a tag; only plain data is read")
    if text and text[0] not in _MAY_BE_PLAIN:
        return text
    kind = next((name for name, pattern in _PLAIN if pattern.fullmatch(text)), "str")
    try:
        return _VALUES[kind](text)
    except ValueError:
        raise DocumentError(line, "it has a number that JSON cannot hold") from None


def _integer(text: str) -> int:
    digits = text.lstrip("+-")
    base = 8 if re.fullmatch("0[0-7]+", digits) else 0  # as Go reads it: a leading 0 means octal
    number = int(digits, base)
    if number > _LARGEST_INTEGER:
        raise ValueError
    return -number if text.startswith("-") else number


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError
    return number


_VALUES: Final[Mapping[str, Callable[[str], str | float | None]]] = {
    "null": lambda _text: None,
    "bool": lambda text: text.lower() in ("true", "yes", "on"),
    "int": _integer,
    "float": _finite,
    "str": str,
}


def _in_words(error: yaml.MarkedYAMLError) -> str:
    problem = str(error.problem or "it cannot be parsed")
    hint = " (indent with blanks: a tab is not allowed)" if "cannot start any token" in problem else ""
    return f"it is not valid YAML: {problem}{hint}"
