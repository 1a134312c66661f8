"""The documents of a YAML or JSON file, each with the lines of its fields; and a writer of YAML.

Rules:

* The values are those of JSON, read as `kubectl` reads them (YAML 1.1 as in Go: `yes` is a boolean, a time of day a
  text).
* Only data: no tags, no merge keys, no repeated keys, and only texts as keys.
* A small file cannot become a large value: repetitions by aliases count, and the depth is limited. For this the module
  reads the parser's events. PyYAML's own composer would crash the process at a depth of some ten thousand.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import yaml

from cloud.kinds.fields import Path

_MOST_WEIGHT: Final = 64 * 1024 * 1024
"""The limit of one file, with repetitions by aliases: each value weighs 8 and its length. The largest file fits
twice."""

_DEEPEST: Final = 100

_TOO_DEEP: Final = f"it is nested more than {_DEEPEST} levels deep"

_NO_JSON_NUMBER: Final = "it has a number that JSON cannot hold"

_LARGEST_INTEGER: Final = 2**64
"""The largest whole number. Kubernetes has no larger one, and Python prints none with thousands of digits."""

_SHOWN_CHARS: Final = 60

_STR, _MERGE = "tag:yaml.org,2002:str", "<<"


class DocumentError(ValueError):
    """The file cannot be read. `line` counts from 1; `why` is a sentence without values of the file."""

    def __init__(self, line: int, why: str) -> None:
        self.line, self.why = line, why
        super().__init__(f"line {line}: {why}")


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a value: its line, and the places of its parts, by key or number."""

    line: int
    parts: "Mapping[str | int, Place]"

    def find(self, path: Path) -> "Place":
        """The place of a part; if it is missing, the place of the part around it."""
        place = self
        for step in path:
            if step not in place.parts:
                break
            place = place.parts[step]
        return place


_Parts = dict[str | int, Place]


@dataclass(frozen=True, slots=True)
class Document:
    """One document: its value and its place."""

    value: Any
    place: Place


def read_yaml(text: str) -> list[Document]:
    """The documents of a YAML file that are not empty.

    Raises:
        DocumentError: the text is no YAML, or breaks the rules above.
    """
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


def read_json(text: str) -> list[Document]:
    """The document of a JSON file. All places are line 1, because the parser gives no lines.

    Raises:
        DocumentError: the text is no JSON, or repeats a key.
    """
    try:
        value = json.loads(
            text, object_pairs_hook=_unique, parse_constant=_no_number, parse_int=_json_integer, parse_float=_finite
        )
    except json.JSONDecodeError as error:
        raise DocumentError(error.lineno, f"it is not valid JSON: {error.msg}") from None
    except RecursionError:
        raise DocumentError(1, _TOO_DEEP) from None
    except ValueError as error:
        raise DocumentError(1, str(error)) from None
    if _is_deeper(value, _DEEPEST):
        raise DocumentError(1, _TOO_DEEP)
    return [Document(value, Place(1, {}))] if value is not None else []


def write_yaml(value: Mapping[str, Any]) -> bytes:
    """A document in block style, as people write YAML."""
    text = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False, width=120)
    return text.encode()


class _Dumper(yaml.CSafeDumper):
    """Writes every part in full, without aliases."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002  # the library's signature
        return True


_PLAIN: Final = (
    ("null", re.compile(r"~|null|Null|NULL|")),
    ("bool", re.compile(r"true|True|TRUE|false|False|FALSE|yes|Yes|YES|no|No|NO|on|On|ON|off|Off|OFF")),
    ("int", re.compile(r"[-+]?(?:0|[1-9][0-9]*|0[xX][0-9a-fA-F]+|0o?[0-7]+|0b[01]+)")),
    ("float", re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")),
    ("float", re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")),
)
"""The types of unquoted texts; any other one is a text.

Nodes choose texts, too, and a long match blocks every thread. So no pattern may match the same digits in two ways,
which would take quadratic time.
"""

_MAY_BE_PLAIN: Final = frozenset("~nNtTfFyYoO-+.0123456789")
"""The first characters of these, which rule most texts out at once."""

for _name, _pattern in _PLAIN:
    _Dumper.add_implicit_resolver(f"tag:yaml.org,2002:{_name}", re.compile(f"(?:{_pattern.pattern})$"), None)


class _Composer:
    """Makes values from the parser's events."""

    def __init__(self, parser: yaml.CSafeLoader) -> None:
        self._parser = parser
        self._weight = 0
        self._anchors: dict[str, _Anchored] = {}

    def document(self) -> Document:
        """The next document."""
        self._anchors = {}
        value, place, _ = self._value(self._next(), 0)
        return Document(value, place)

    def _next(self) -> Any:
        return self._parser.get_event()

    def _value(self, event: Any, depth: int) -> "tuple[Any, Place, int]":
        """The value that begins with an event, its place, and its number of levels."""
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event, line, depth)
        before = self._weight
        self._weigh(8, line)
        if depth >= _DEEPEST:
            raise DocumentError(line, _TOO_DEEP)
        value, parts, height = self._parts(event, line, depth)
        place = Place(line, parts)
        if event.anchor is not None:
            self._anchors[event.anchor] = _Anchored(value, place, height, self._weight - before)
        return value, place, height

    def _parts(self, event: Any, line: int, depth: int) -> "tuple[Any, _Parts, int]":
        if isinstance(event, yaml.ScalarEvent):
            self._weigh(len(event.value), line)
            return _scalar(event, line), {}, 0
        if event.tag is not None:
            raise DocumentError(line, "it has a tag; only plain data is read")
        return self._mapping(depth) if isinstance(event, yaml.MappingStartEvent) else self._sequence(depth)

    def _mapping(self, depth: int) -> "tuple[Any, _Parts, int]":
        values: dict[str, Any] = {}
        places: _Parts = {}
        height = 0
        while not isinstance(event := self._next(), yaml.MappingEndEvent):
            line = event.start_mark.line + 1
            key = self._key(event, line)
            if key in values:
                raise DocumentError(line, f"the key {_short(key)} stands there twice")
            values[key], place, below = self._value(self._next(), depth + 1)
            places[key] = Place(line, place.parts)
            height = max(height, below + 1)
        return values, places, height

    def _key(self, event: Any, line: int) -> str:
        key = _scalar(event, line) if isinstance(event, yaml.ScalarEvent) else None
        if not isinstance(key, str):
            raise DocumentError(line, "a key must be a text (in quotes, if it looks like something else)")
        if key == _MERGE:
            raise DocumentError(line, "merge keys (<<) are not read")
        self._weigh(8 + len(key), line)
        return key

    def _sequence(self, depth: int) -> "tuple[Any, _Parts, int]":
        values: list[Any] = []
        places: _Parts = {}
        height = 0
        while not isinstance(event := self._next(), yaml.SequenceEndEvent):
            value, places[len(values)], below = self._value(event, depth + 1)
            values.append(value)
            height = max(height, below + 1)
        return values, places, height

    def _alias(self, event: Any, line: int, depth: int) -> "tuple[Any, Place, int]":
        anchored = self._anchors.get(event.anchor)
        if anchored is None:
            raise DocumentError(line, f"the alias {_short(event.anchor)} refers to no anchor that ends before it")
        if depth + anchored.height >= _DEEPEST:
            raise DocumentError(line, _TOO_DEEP)
        self._weigh(anchored.weight, line)
        return anchored.value, Place(line, anchored.place.parts), anchored.height

    def _weigh(self, weight: int, line: int) -> None:
        self._weight += weight
        if self._weight > _MOST_WEIGHT:
            raise DocumentError(line, f"it is larger than {_MOST_WEIGHT >> 20} MiB, counting what aliases repeat")


@dataclass(frozen=True, slots=True)
class _Anchored:
    value: Any
    place: Place
    height: int
    weight: int


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
        return _of_kind(kind, text)
    except ValueError:
        raise DocumentError(line, _NO_JSON_NUMBER) from None


def _of_kind(kind: str, text: str) -> str | int | float | bool | None:
    if kind == "null":
        return None
    if kind == "bool":
        return text.lower() in ("true", "yes", "on")
    if kind == "int":
        return _integer(text)
    if kind == "float":
        return _finite(text)
    return text


def _integer(text: str) -> int:
    """A whole number as Go reads it: a leading 0 means octal."""
    digits = text.lstrip("+-")
    base = 8 if re.fullmatch("0[0-7]+", digits) else 0
    number = int(digits, base)
    if number > _LARGEST_INTEGER:
        raise ValueError(_NO_JSON_NUMBER)
    return -number if text.startswith("-") else number


def _json_integer(text: str) -> int:
    if len(text) > len(str(_LARGEST_INTEGER)) or abs(number := int(text)) > _LARGEST_INTEGER:
        raise ValueError(_NO_JSON_NUMBER)
    return number


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(_NO_JSON_NUMBER)
    return number


def _is_deeper(value: object, levels: int) -> bool:
    """Whether a value has more levels than this, texts and numbers included. It does not recurse."""
    level = [value]
    for _ in range(levels):
        level = [
            part
            for whole in level
            if isinstance(whole, dict | list)
            for part in (whole.values() if isinstance(whole, dict) else whole)
        ]
        if not level:
            return False
    return True


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {_short(twice)} stands there twice")
    return found


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is not a JSON number")


def _short(text: str) -> str:
    """A key or an alias for an error."""
    return repr(text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…")


def _in_words(error: yaml.MarkedYAMLError) -> str:
    problem = str(error.problem or "it cannot be parsed")
    hint = " (indent with blanks: a tab is not allowed)" if "cannot start any token" in problem else ""
    return f"it is not valid YAML: {problem}{hint}"
