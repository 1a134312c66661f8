"""Kept connections to an API server, for requests that are frequent and small.

With thousands of nodes, renewals of their Leases are most of an idle hub's work. aiohttp takes 0.5 ms of CPU more for
such a request, so an idle node would cost the hub a third more.

Rules:

* A connection carries one request at a time. It is kept for the next one only after a whole answer.
* A request is sent once. If its connection ends before the answer, the server may have carried it out.
* A connection that was not used for `_IDLE_S` is closed: the server closes it some time, and a request could cross
  that.
"""

import asyncio
import ssl
from collections.abc import Callable, Mapping
from typing import Final, cast
from urllib.parse import urlsplit

from cloud.kube.http_answer import AnswerReader, HttpAnswer

# Longer than the pause between two renewals of one Lease. An API server closes a connection after 90 s.
_IDLE_S: Final = 20.0

ANSWER_S: Final = 30.0  # Time limit for one answer. The API server itself ends a request after 60 s.

NOT_LEADING: Final = "this hub is not the leader any more"


class KeptConnections:
    """The connections to one server."""

    def __init__(
        self,
        url: str,
        tls: ssl.SSLContext | None,
        *,
        server_name: str | None = None,
        may_ask: Callable[[], bool] = lambda: True,
    ) -> None:
        """`may_ask` is asked last of all: a connection may take a while."""
        parts = urlsplit(url)
        self._host = parts.netloc.rpartition("@")[2]
        self._path = parts.path
        self._tls = tls if parts.scheme == "https" else None
        self._address = parts.hostname or "", parts.port or (443 if self._tls is not None else 80)
        self._server_name = (server_name or self._address[0]) if self._tls is not None else None
        self._idle: list[_Connection] = []  # the one that was used last is the last
        self._closed = False
        self._may_ask = may_ask

    async def ask(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> HttpAnswer:
        """Send a request, and return the answer. A cancelled request ends its connection.

        `path` goes on after the one in the server's URL; `headers` lack `Host` and `Content-Length`.

        Raises:
            OSError: there is no connection, or it ended before the answer; TimeoutError: none came within `ANSWER_S`.
            ValueError: the answer is not HTTP, or a header cannot be sent.
        """
        request = self._head(method, path, headers, len(body)) + body
        connection = self._take() or await self._open()
        keep = False
        try:
            if not self._may_ask():
                raise ConnectionAbortedError(NOT_LEADING)
            answer = await connection.ask(request)
            keep = answer.keeps_connection and headers.get("Connection") != "close" and not self._closed
        finally:
            if keep:
                self._idle.append(connection)
            else:
                connection.close()
        return answer

    def drop(self) -> None:
        # Those in use stay.
        while self._idle:
            self._idle.pop().close()

    def close(self) -> None:
        """Close the connections, those in use after their answer."""
        self._closed = True
        self.drop()

    def _head(self, method: str, path: str, headers: Mapping[str, str], length: int) -> bytes:
        lines = [f"{method} {self._path}/{path} HTTP/1.1", f"Host: {self._host}", f"Content-Length: {length}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        head = "\r\n".join(lines)
        if not head.count("\n") == head.count("\r") == len(lines) - 1:  # a token from a file that holds something else
            raise ValueError("a header has more than one line")
        return f"{head}\r\n\r\n".encode("latin-1")

    def _take(self) -> "_Connection | None":
        # The one that was used last: so the others become superfluous when there is less to do.
        oldest = asyncio.get_running_loop().time() - _IDLE_S
        while self._idle and (self._idle[0].is_closed or self._idle[0].used_at < oldest):
            self._idle.pop(0).close()
        while self._idle:
            if not (connection := self._idle.pop()).is_closed:
                return connection
        return None

    async def _open(self) -> "_Connection":
        host, port = self._address
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(ANSWER_S):
            _, connection = await loop.create_connection(
                lambda: _Connection(loop), host, port, ssl=self._tls, server_hostname=self._server_name
            )
        return connection


class _Connection(asyncio.Protocol):
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._reader = AnswerReader()
        self._transport: asyncio.Transport | None = None
        self._waiting: asyncio.Future[HttpAnswer] | None = None
        self.used_at = 0.0  # when its last request began, in the loop's time
        self.is_closed = False

    async def ask(self, request: bytes) -> HttpAnswer:
        assert self._transport is not None
        self._waiting = self._loop.create_future()
        self.used_at = self._loop.time()
        self._transport.write(request)
        limit = self._loop.call_later(ANSWER_S, self._fail, TimeoutError())
        try:
            return await self._waiting
        finally:
            limit.cancel()
            self._waiting = None

    def close(self) -> None:
        # Without a goodbye in TLS: a server may be slow to answer it.
        self.is_closed = True
        if self._transport is not None:
            self._transport.abort()

    # ---- asyncio.Protocol --------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are of no class of asyncio's

    def data_received(self, data: bytes) -> None:
        try:
            answer = self._reader.feed(data)
        except ValueError as error:
            self._fail(error)
            return
        if answer is None:
            return
        if self._waiting is None:
            self.close()  # a server says in this way that it has closed an idle connection
        elif not self._waiting.done():
            self._waiting.set_result(answer)

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(error or ConnectionResetError("the connection ended before the answer"))

    def _fail(self, error: Exception) -> None:
        self.close()
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(error)
