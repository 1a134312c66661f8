"""An HTTP answer: reads what an API server answers on one connection (HTTP/1.1, RFC 9112).

Rules:

* A body has a length, or comes in chunks. Go's servers send no other.
* Bytes that are no such answer, or more than `MOST_BYTES` of them, are a ValueError. The connection is then of no use.
"""

import string
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

MOST_BYTES: Final = 8 * 1024 * 1024  # etcd takes objects of 1.5 MiB, and JSON escapes some characters with six
_MOST_HEAD_BYTES: Final = 65_536
_MOST_DIGITS: Final = 8
_DIGITS: Final = {10: string.digits, 16: string.hexdigits}


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer with its whole body."""

    status: int
    headers: Mapping[str, str]  # by name in lower case; if one comes twice, its last value
    body: bytes

    @property
    def keeps_connection(self) -> bool:
        return self.headers.get("connection", "").lower() != "close"


class AnswerReader:
    """Reads one answer after another."""

    def __init__(self) -> None:
        self._data = b""

    def feed(self, data: bytes) -> Answer | None:
        """Return the answer that these bytes end; None while it is incomplete. Raises ValueError."""
        self._data = data = self._data + data if self._data else data
        read = _read(data)
        if read is None:
            if len(data) > MOST_BYTES:
                raise ValueError(f"the answer has more than {MOST_BYTES >> 20} MiB")
            return None
        answer, end = read
        if end != len(data):
            raise ValueError("the server sent bytes that no request asked for")
        self._data = b""
        return answer


def _read(data: bytes) -> tuple[Answer, int] | None:
    """The answer at the beginning of the data, and where it ends; None while it is incomplete."""
    begin, status = 0, 100
    headers: dict[str, str] = {}
    while 100 <= status < 200:  # interim answers have no body, and the real one follows
        end = data.find(b"\r\n\r\n", begin)
        if end - begin > _MOST_HEAD_BYTES or (end < 0 and len(data) - begin > _MOST_HEAD_BYTES):
            raise ValueError("the head of the answer is too long")
        if end < 0:
            return None
        status, headers = _head(data[begin:end].decode("latin-1"))
        begin = end + 4
    if status in {204, 304}:
        return Answer(status, headers, b""), begin
    if "transfer-encoding" in headers:
        if headers["transfer-encoding"].lower() != "chunked":
            raise ValueError("the answer has an unknown transfer encoding")
        body = _chunks(data, begin)
        return None if body is None else (Answer(status, headers, body[0]), body[1])
    end = begin + _number(headers.get("content-length", ""), 10)
    return None if end > len(data) else (Answer(status, headers, data[begin:end]), end)


def _head(text: str) -> tuple[int, dict[str, str]]:
    first, *lines = text.split("\r\n")
    version, _, rest = first.partition(" ")
    if version != "HTTP/1.1":
        raise ValueError("the answer is not HTTP/1.1")
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    return _number(rest[:3], 10), headers


def _chunks(data: bytes, begin: int) -> tuple[bytes, int] | None:
    """The body from its chunks, and where the last one ends; None while it is incomplete."""
    parts: list[bytes] = []
    while (line := data.find(b"\r\n", begin)) >= 0:
        size = _number(data[begin:line].partition(b";")[0].decode("latin-1").strip(), 16)
        begin = line + 2
        if size == 0:  # trailers may follow, then an empty line
            end = data.find(b"\r\n\r\n", line)
            return (b"".join(parts), end + 4) if end >= 0 else None
        if len(data) < begin + size + 2:
            return None
        parts.append(data[begin : begin + size])
        begin += size + 2
    return None


def _number(text: str, base: int) -> int:
    # int() would also take signs, spaces and underscores.
    if text.strip(_DIGITS[base]) or not 0 < len(text) <= _MOST_DIGITS:
        raise ValueError("the answer has no length, or no status")
    return int(text, base)
