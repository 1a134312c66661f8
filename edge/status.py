"""The status: the agent's state and its pods' volumes as JSON over HTTP on a UNIX socket, for people and scripts."""

import asyncio
import json
import socket
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

_READ_TIMEOUT_S = 5.0
"""A client that does not finish its request line in this time is let go."""


class StatusEndpoint:
    """Answers `GET` of some paths and nothing else. What it tells holds no secret."""

    def __init__(self, sock: socket.socket, pages: Mapping[str, Callable[[], dict[str, Any]]]) -> None:
        """Serve on a listening socket, which it owns from now on; `pages` gives each path's answer, asked each time."""
        self._socket = sock
        self._pages = pages
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
            async with asyncio.timeout(_READ_TIMEOUT_S):
                request = await reader.readline()
                while (await reader.readline()).strip():
                    pass
                writer.write(self._answer(request))
                await writer.drain()
        except (OSError, ValueError, TimeoutError):  # gone, a line of more than 64 KiB, or too slow
            pass
        finally:
            writer.close()

    def _answer(self, request: bytes) -> bytes:
        method, _, rest = request.partition(b" ")
        page = self._pages.get(rest.split(b" ")[0].decode(errors="replace")) if method == b"GET" else None
        status = HTTPStatus.OK if page is not None else HTTPStatus.NOT_FOUND
        answer = page() if page is not None else {"error": f"only GET of {' and '.join(self._pages)} is served"}
        body = json.dumps(answer, indent=2).encode() + b"\n"
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        return head.encode() + body
