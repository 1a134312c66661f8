"""An HTTP answer: reads the answers of an API server on one connection (HTTP/1.1, RFC 9112), with llhttp.

Rules:

* A body has a length, or comes in chunks. Go's servers send no other.
* Bytes that are no such answer, or more than `MOST_BYTES` of them, are a ValueError. The connection is then of no use.
"""

from dataclasses import dataclass
from typing import Final

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

MOST_BYTES: Final = 8 * 1024 * 1024  # etcd takes objects of 1.5 MiB, and JSON escapes some characters with six


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """An answer with its whole body."""

    status: int
    body: bytes
    keeps_connection: bool


class AnswerReader:
    """Reads one answer after another."""

    def __init__(self) -> None:
        self._parser = HttpResponseParser(self)
        self._begun = False
        self._bytes = 0
        self._body = bytearray()
        self._answers: list[HttpAnswer] = []

    def feed(self, data: bytes) -> HttpAnswer | None:
        """Return the answer that these bytes end; None while it is incomplete. Raises ValueError."""
        self._bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            raise ValueError(f"the answer is not HTTP/1.1 ({error})") from error
        if not self._answers:
            if self._bytes > MOST_BYTES:
                raise ValueError(f"the answer has more than {MOST_BYTES >> 20} MiB")
            return None
        answer, *more = self._answers
        if more or self._begun:
            raise ValueError("the server sent bytes that no request asked for")
        self._answers = []
        self._bytes = 0
        return answer

    # ---- the parser's callbacks

    def on_message_begin(self) -> None:
        self._begun = True

    def on_body(self, part: bytes) -> None:
        self._body += part

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200:  # the real answer follows an interim one
            self._begun = False
            self._answers.append(HttpAnswer(status, bytes(self._body), self._parser.should_keep_alive()))
            self._body.clear()
