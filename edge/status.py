"""The status: the agent's state and its pods' volumes as JSON over HTTP on a UNIX socket, for people and scripts.

However many ask, telling them takes a fifth of the agent's time at most: an answer that took long to make is given
again for four times as long. At a boot every unit that waits for its pod's volumes asks five times a second.
"""

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

_READ_TIMEOUT_S = 5.0
"""A client that does not finish its request in this time, or does not read its answer, is let go."""

_KEPT = 4
"""So many times as long as an answer took to make, it is given again."""


class StatusEndpoint:
    """Answers `GET` of some paths and nothing else. What it tells holds no secret."""

    def __init__(
        self,
        sock: socket.socket,
        pages: Mapping[str, Callable[[], dict[str, Any]]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Serve on a listening socket, which it owns from now on; `pages` gives each path's answer."""
        self._socket = sock
        self._pages = pages
        self._clock = clock
        self._kept: dict[str, tuple[float, bytes]] = {}
        """By path: until when an answer is given again."""
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Take requests."""
        self._server = await asyncio.start_unix_server(self._serve, sock=self._socket)

    async def close(self) -> None:
        """Close the socket."""
        if self._server is not None:
            self._server.close()
        self._socket.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = await _request(reader)
            if request:
                writer.transport.set_write_buffer_limits(0)  # all of it is drained, or it is not
                writer.write(self._answer(request))  # what fails in here is a bug, and asyncio logs it
                with contextlib.suppress(OSError, TimeoutError):  # gone, or too slow
                    async with asyncio.timeout(_READ_TIMEOUT_S):
                        await writer.drain()
        finally:
            writer.transport.abort()  # closing would wait for who does not read, for ever

    def _answer(self, request: bytes) -> bytes:
        method, _, rest = request.partition(b" ")
        path = rest.split(b" ")[0].decode(errors="replace")
        if method == b"GET" and path in self._pages:
            return _encoded(HTTPStatus.OK, self._body(path))
        return _encoded(HTTPStatus.NOT_FOUND, _json({"error": f"only GET of {' and '.join(self._pages)} is served"}))

    def _body(self, path: str) -> bytes:
        begun = self._clock()
        until, body = self._kept.get(path, (begun, b""))
        if begun >= until:
            body = _json(self._pages[path]())
            ended = self._clock()
            self._kept[path] = ended + _KEPT * (ended - begun), body
        return body


def _json(answer: dict[str, Any]) -> bytes:
    return json.dumps(answer, indent=2).encode() + b"\n"


def _encoded(status: HTTPStatus, body: bytes) -> bytes:
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


async def _request(reader: asyncio.StreamReader) -> bytes:
    """The request line; empty if the client is gone, too slow, or writes lines of more than 64 KiB."""
    try:
        async with asyncio.timeout(_READ_TIMEOUT_S):
            request = await reader.readline()
            while (await reader.readline()).strip():
                pass
    except (OSError, ValueError, TimeoutError):
        return b""
    return request
