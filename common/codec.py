"""A codec: turns frozen dataclasses into msgpack bytes and back, for session frames and for sync messages.

An item is a msgpack array: its class' type number, then its fields in the order of the dataclass. A message is a
sequence of items.

Rules:

* Decoding is strict. A wrong type, a missing field, a negative number or a truncated item is a `RemoteProtocolError`.
  It names the class and the field, never the value.
* Unknown fields at the end of an item come from a newer peer and are ignored. New fields go to the end and have a
  default.
* An item of an unknown type becomes an `UnknownFrame`; the caller decides.
* Fields are ints, strings, bytes, booleans, or tuples of strings.
"""

import operator
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar, Generic, Protocol, TypeVar, get_type_hints

import msgpack

from common.errors import RemoteProtocolError

MAX_TEXT_BYTES = 65_536
"""The longest string in a frame. Strings are status messages for people: nobody reads a vendor's 3 MB."""

LARGEST_NUMBER = 2**63 - 1
"""The largest number in a frame; the smallest is 0."""

_MAX_FRAMES = 16_384
"""The most frames in one message, so that decoding blocks the loop only briefly. A chunk of acks has 4,000."""

_MAX_ITEMS = 256
"""The longest array and map: msgpack reserves memory for an array's announced length, at each of 1,000 nested
levels."""


class Typed(Protocol):
    """A frozen dataclass with a type number."""

    type: ClassVar[int]
    __dataclass_fields__: ClassVar[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class UnknownFrame:
    """A received frame of a type that only a newer peer knows."""

    type: int


T = TypeVar("T", bound=Typed)

pack: Callable[[object], bytes] = msgpack.Packer(use_bin_type=True, autoreset=True, unicode_errors="replace").pack
"""Encodes one value. Lone surrogates in strings become question marks."""


@dataclass(frozen=True, slots=True)
class _Layout:
    """How one frame class is checked and read.

    Attributes:
        frame: the class.
        names: its fields, in wire order.
        types: their types; `tuple` is a tuple of strings.
        numbers: the positions of the numbers.
        required: how many fields have no default.
        values: reads all fields of a frame at once, as a tuple.
    """

    frame: type[Any]
    names: tuple[str, ...]
    types: tuple[type, ...]
    numbers: tuple[int, ...]
    required: int
    values: Callable[[Any], tuple[Any, ...]]


def _layout(frame: type[Typed]) -> _Layout:
    hints = get_type_hints(frame)
    found = [item for item in fields(frame) if item.name != "type"]
    names = tuple(item.name for item in found)
    types = tuple(tuple if hints[name] == tuple[str, ...] else hints[name] for name in names)
    getter = operator.attrgetter(*names) if names else lambda _: ()
    return _Layout(
        frame=frame,
        names=names,
        types=types,
        numbers=tuple(position for position, kind in enumerate(types) if kind is int),
        required=sum(item.default is MISSING for item in found),
        values=getter if len(names) != 1 else lambda frame: (getter(frame),),
    )


class Codec(Generic[T]):
    """Encodes and decodes the dataclasses of one closed set."""

    __slots__ = ("_layouts",)

    def __init__(self, classes: tuple[type[T], ...]) -> None:
        """A codec for these classes; their type numbers differ."""
        self._layouts: dict[int, _Layout] = {frame.type: _layout(frame) for frame in classes}

    def encode(self, frame: T) -> bytes:
        """The frame's bytes. Payloads may be any bytes-like object; strings are cut at `MAX_TEXT_BYTES`.

        A lone surrogate in a vendor's text becomes a question mark: if encoding failed, the call would never end.
        """
        values = self._layouts[frame.type].values(frame)
        data = pack((frame.type, *values))
        if len(data) <= MAX_TEXT_BYTES:  # so is every string in it: the ordinary case
            return data
        return pack((frame.type, *map(_fit, values)))

    def decode(self, data: bytes) -> list[T | UnknownFrame]:
        """Return all frames of one message.

        Raises:
            RemoteProtocolError: the bytes are not whole, well-formed frames.
        """
        unpacker = msgpack.Unpacker(
            use_list=False,
            strict_map_key=False,
            max_buffer_size=max(len(data), 1),
            max_str_len=MAX_TEXT_BYTES,
            max_array_len=_MAX_ITEMS,
            max_map_len=_MAX_ITEMS,
        )
        unpacker.feed(data)
        frames: list[T | UnknownFrame] = []
        end = 0
        try:
            for value in unpacker:
                frames.append(self._frame(value))
                if len(frames) > _MAX_FRAMES:
                    raise RemoteProtocolError(f"a message of more than {_MAX_FRAMES} frames")  # noqa: TRY301  # no msgpack's
                end = unpacker.tell()  # not at the end of the loop: tell() counts the bytes of a truncated value, too
        except RemoteProtocolError:
            raise
        except Exception as error:
            # msgpack raises ValueError, its own classes and UnicodeDecodeError.
            raise RemoteProtocolError(
                f"a message of {len(data)} bytes is not msgpack ({type(error).__name__})"
            ) from error
        if end != len(data):
            raise RemoteProtocolError(f"a message of {len(data)} bytes ends inside a frame")
        return frames

    def _frame(self, value: Any) -> T | UnknownFrame:
        if type(value) is not tuple or not value or type(value[0]) is not int or not 0 <= value[0] <= LARGEST_NUMBER:
            raise RemoteProtocolError("a frame is not an array that starts with its type number")
        layout = self._layouts.get(value[0])
        if layout is None:
            return UnknownFrame(value[0])
        given = value[1 : len(layout.names) + 1]
        if tuple(map(type, given)) == layout.types and tuple not in layout.types:  # the ordinary case, at C's speed
            for position in layout.numbers:
                if not 0 <= given[position] <= LARGEST_NUMBER:
                    raise RemoteProtocolError(f"{layout.frame.__name__}: {layout.names[position]} is out of range")
            return layout.frame(*given)  # type: ignore[no-any-return]  # a layout's class is one of ours
        return _unusual(layout, given)  # type: ignore[no-any-return]  # the same


def _unusual(layout: _Layout, given: tuple[Any, ...]) -> Any:
    """Read field by field a frame that has tuples of strings, lacks optional fields, or is wrong."""
    if len(given) < layout.required:
        raise RemoteProtocolError(f"{layout.frame.__name__}: {layout.names[len(given)]} is missing")
    for name, want, item in zip(layout.names, layout.types, given, strict=False):
        if type(item) is not want:
            raise RemoteProtocolError(
                f"{layout.frame.__name__}: {name} is a {type(item).__name__}, not {want.__name__}"
            )
        if isinstance(item, int) and not 0 <= item <= LARGEST_NUMBER:
            raise RemoteProtocolError(f"{layout.frame.__name__}: {name} is out of range")
        if isinstance(item, tuple) and not all(type(text) is str for text in item):
            raise RemoteProtocolError(f"{layout.frame.__name__}: {name} holds something that is not a string")
    return layout.frame(*given)


def _fit(value: Any) -> Any:
    if type(value) is str and len(value) > MAX_TEXT_BYTES // 4:
        return value.encode(errors="replace")[:MAX_TEXT_BYTES].decode(errors="ignore")
    return value
