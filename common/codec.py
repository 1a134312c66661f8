"""A codec: turns dataclasses into msgpack bytes and back, for session frames and for sync messages.

An item is a msgpack array: its class' type number, then its fields in the order of the dataclass. A message is a
sequence of items.

Rules:

* Decoding is strict. A wrong type, a missing field, a negative number or a truncated item is a `RemoteProtocolError`.
  It names the class and the field, never the value.
* Unknown fields at the end of an item come from a newer peer and are ignored. New fields go to the end and have a
  default.
* A session answers an item of an unknown type (`read`). Anywhere else it breaks the rules (`decode`).
* Fields are ints, strings, bytes, booleans, or tuples of strings.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from itertools import islice
from operator import itemgetter
from typing import Any, Generic, TypeVar, get_type_hints

import msgpack

from common.errors import RemoteProtocolError

# The longest string in a frame. Strings are status messages for people: nobody reads a vendor's 3 MB.
MAX_TEXT_BYTES = 65_536

LARGEST_NUMBER = 2**63 - 1  # the largest number in a frame; the smallest is 0

# The most frames in one message, so that decoding blocks the loop only briefly. A chunk of acks has 4,000.
_MAX_FRAMES = 16_384

# The longest array and map: msgpack reserves memory for an array's announced length, at each of 1,000 nested levels.
_MAX_ITEMS = 256


_KEPT_BYTES = 65_536  # after a message of more bytes its unpacker is not kept: it would keep as much memory

T = TypeVar("T")

# Encodes one value. Lone surrogates in strings become question marks.
pack: Callable[[object], bytes] = msgpack.Packer(use_bin_type=True, autoreset=True, unicode_errors="replace").pack


class _Layout:
    __slots__ = ("_defaults", "_names", "_numbers", "_ordinary", "_required", "_types", "frame", "number")

    def __init__(self, number: int, frame: type[Any]) -> None:
        hints = get_type_hints(frame)
        found = fields(frame)
        self.number = number
        self.frame = frame
        self._names = tuple(item.name for item in found)
        self._types = tuple(tuple if hints[name] == tuple[str, ...] else hints[name] for name in self._names)
        numbers = [place for place, kind in enumerate(self._types) if kind is int]
        self._ordinary = self._types if numbers and tuple not in self._types else None
        self._numbers = itemgetter(*(numbers * 2 or (0, 0)))  # of two at least, so that it returns a tuple
        self._required = sum(item.default is MISSING for item in found)
        self._defaults = tuple(item.default for item in found)

    def values(self, frame: Any) -> tuple[Any, ...]:
        return tuple([getattr(frame, name) for name in self._names])

    def read(self, item: tuple[Any, ...]) -> tuple[Any, ...]:
        given = item[1 : len(self._names) + 1]
        if tuple(map(type, given)) != self._ordinary:
            return self._read_unusual(given)
        numbers = self._numbers(given)
        return given if min(numbers) >= 0 and max(numbers) <= LARGEST_NUMBER else self._read_unusual(given)

    def _read_unusual(self, given: tuple[Any, ...]) -> tuple[Any, ...]:
        # Field by field: the item has tuples of strings, lacks optional fields, or is wrong.
        if len(given) < self._required:
            raise RemoteProtocolError(f"{self.frame.__name__}: {self._names[len(given)]} is missing")
        for name, want, item in zip(self._names, self._types, given, strict=False):
            if type(item) is not want:
                raise RemoteProtocolError(
                    f"{self.frame.__name__}: {name} is a {type(item).__name__}, not {want.__name__}"
                )
            if isinstance(item, int) and not 0 <= item <= LARGEST_NUMBER:
                raise RemoteProtocolError(f"{self.frame.__name__}: {name} is out of range")
            if isinstance(item, tuple) and not all(type(text) is str for text in item):
                raise RemoteProtocolError(f"{self.frame.__name__}: {name} holds something that is not a string")
        return given + self._defaults[len(given) :]


class Codec(Generic[T]):
    """Encodes and decodes the dataclasses of one closed set."""

    __slots__ = ("_by_class", "_by_number")

    def __init__(self, classes: Mapping[int, type[T]]) -> None:
        self._by_number = {number: _Layout(number, frame) for number, frame in classes.items()}
        self._by_class = {layout.frame: layout for layout in self._by_number.values()}

    def encode(self, frame: T) -> bytes:
        """The frame's bytes. Payloads may be any bytes-like object; strings are cut at `MAX_TEXT_BYTES`.

        A lone surrogate in a vendor's text becomes a question mark: if encoding failed, the call would never end.
        """
        layout = self._by_class[type(frame)]
        values = layout.values(frame)
        data = pack((layout.number, *values))
        if len(data) <= MAX_TEXT_BYTES:  # so is every string in it: the ordinary case
            return data
        return pack((layout.number, *map(_fit, values)))

    def decode(self, data: bytes) -> list[T]:
        """All frames of one message. Raises RemoteProtocolError if one is not whole, not well-formed or not known."""
        frames = []
        for number, found in self.read(data):
            if found is None:
                raise RemoteProtocolError(f"a message of the unknown type {number}")
            frames.append(self._by_number[number].frame(*found))
        return frames

    def read(self, data: bytes) -> list[tuple[int, tuple[Any, ...] | None]]:
        """Type number and fields of each frame of one message; no fields if only a newer peer knows the type."""
        try:
            unpacker = _SPARE.pop()
        except IndexError:
            unpacker = _new_unpacker()
        start = end = unpacker.tell()
        unpacker.feed(data)
        frames: list[tuple[int, tuple[Any, ...] | None]] = []
        try:
            for item in islice(unpacker, _MAX_FRAMES + 1):
                end = unpacker.tell()  # not after the loop: tell() counts the bytes of a truncated item, too
                if type(item) is not tuple or not item or type(item[0]) is not int:
                    raise RemoteProtocolError(_NO_FRAME)  # noqa: TRY301  # no msgpack's
                number = item[0]
                layout = self._by_number.get(number)
                if layout is not None:
                    frames.append((number, layout.read(item)))
                elif 0 <= number <= LARGEST_NUMBER:
                    frames.append((number, None))
                else:
                    raise RemoteProtocolError(_NO_FRAME)  # noqa: TRY301  # the same
        except RemoteProtocolError:
            raise
        except Exception as error:
            # msgpack raises ValueError, its own classes and UnicodeDecodeError.
            raise RemoteProtocolError(
                f"a message of {len(data)} bytes is not msgpack ({type(error).__name__})"
            ) from error
        if len(frames) > _MAX_FRAMES:
            raise RemoteProtocolError(f"a message of more than {_MAX_FRAMES} frames")
        if end != start + len(data):
            raise RemoteProtocolError(f"a message of {len(data)} bytes ends inside a frame")
        if len(data) <= _KEPT_BYTES:
            _SPARE.append(unpacker)
        return frames


_NO_FRAME = "a frame is not an array that starts with its type number"

# Unpackers that have read whole messages, for the next one: a new one takes longer than reading a small message.
_SPARE: list[msgpack.Unpacker] = []


def _new_unpacker() -> msgpack.Unpacker:
    return msgpack.Unpacker(
        use_list=False,
        strict_map_key=False,
        read_size=_KEPT_BYTES,
        max_buffer_size=0,  # no limit: the message is here already
        max_str_len=MAX_TEXT_BYTES,
        max_array_len=_MAX_ITEMS,
        max_map_len=_MAX_ITEMS,
    )


def _fit(value: Any) -> Any:
    if type(value) is str and len(value) > MAX_TEXT_BYTES // 4:
        return value.encode(errors="replace")[:MAX_TEXT_BYTES].decode(errors="ignore")
    return value
