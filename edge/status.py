"""The status: the agent's state as JSON over HTTP on a UNIX socket, for people and scripts on the node."""

import asyncio
import json
import socket
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

_READ_TIMEOUT_S = 5.0
"""A client that does not finish its request line in this time is let go."""


class StatusEndpoint:
    """Answers `GET /status` and nothing else. What it tells holds no secret."""

    def __init__(self, sock: socket.socket, describe: Callable[[], dict[str, Any]]) -> None:
        """Serve on a listening socket, which it owns from now on; `describe` is asked for each request."""
        self._socket = sock
        self._describe = describe
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
        found = request.split()[:2] == [b"GET", b"/status"]
        status = HTTPStatus.OK if found else HTTPStatus.NOT_FOUND
        body = (
            json.dumps(self._describe() if found else {"error": "only GET /status is served"}, indent=2).encode()
            + b"\n"
        )
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        return head.encode() + body
