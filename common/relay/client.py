"""The gRPC client: one kept connection to the vendor's driver, and calls of any method as bytes.

Rules:

* A status is the vendor's only if the vendor sent it in trailers, on a connection that lived on. Any other end of a
  call raises a `VendorConnectionError` (docs/csi-contract.md#a-final-code-makes-a-sidecar-forget).
* The channel dials at the first call. It dials again after the connection has died, or when the socket's file has
  changed because the driver restarted. It sends no keepalive pings: grpc-go closes connections for them.
* On each new connection the channel first asks for the driver's name. It sends no call for another driver there.
* There is one dial at a time. After a failure the next one waits up to a second, unless the socket's file has changed.
"""

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

from common.backoff import Backoff
from common.parsers import LONGEST_SOCKET_PATH_BYTES
from common.relay.client_call import ClientCall
from common.relay.client_connection import ClientConnection
from common.relay.errors import VendorConnectionError, VendorReplaced, VendorUnreachable
from common.sockets import FileId, file_id

__all__ = ["Ask", "Channel", "ClientCall"]

_REDIAL = Backoff(first_s=0.02, most_s=1.0)
"""The waits between failing dials. As with sidecars, a driver that comes back is found within a second."""

_OPEN_ATTEMPTS = 3
"""A driver may close the connection just before a call begins, but not three times in a row."""

Ask = Callable[[str, bytes], ClientCall]
"""Makes a call of a method with a request, on one connection."""


async def _anyone(_ask: Ask) -> str:
    return ""


class Channel:
    """Calls to one driver socket.

    Attributes:
        path: the socket.
        max_message_bytes: largest message of an answer.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        max_message_bytes: int,
        who: Callable[[Ask], Awaitable[str]] = _anyone,
        connect_timeout_s: float = 5.0,
        who_timeout_s: float = 10.0,
    ) -> None:
        """A channel that has not dialled yet.

        Args:
            path: the driver's socket.
            max_message_bytes: largest message of an answer.
            who: asks for the driver's name on a new connection; raises `ValueError` with a reason in words.
            connect_timeout_s: limit for the dial and the exchange of HTTP/2 settings together.
            who_timeout_s: limit for that question.
        """
        self.path = str(path)
        self.max_message_bytes = max_message_bytes
        self._who = who
        self._connect_timeout_s = connect_timeout_s
        self._who_timeout_s = who_timeout_s
        self._connection: ClientConnection | None = None
        self._file_id: FileId = None
        self._dial: asyncio.Task[ClientConnection | VendorUnreachable] | None = None
        self._dialled_file_id: FileId = None
        self._failed: VendorUnreachable | None = None
        self._failures = 0
        self._retry_at_s = 0.0
        self._connections: set[ClientConnection] = set()
        self._closed = False

    @property
    def connected(self) -> bool:
        """Whether a connection is up."""
        return self._connection is not None and self._connection.usable

    def call(self, method: str, request: bytes, *, timeout_s: float | None = None, to: str = "") -> ClientCall:
        """A call, which starts when its first message is awaited.

        Args:
            method: the path, e.g. `/csi.v1.Controller/CreateVolume`.
            request: the request message.
            timeout_s: the caller's remaining time, for the driver. The channel itself sets no limit.
            to: the name of the driver that the call is for; empty for any.
        """
        return ClientCall(self, method, request, timeout_s, to)

    async def close(self) -> None:
        """Close the connections; running calls fail."""
        self._closed = True
        self._connection = None
        for connection in list(self._connections):
            connection.shut()
        if self._dial is not None:
            await asyncio.wait([self._dial])
        while self._connections:
            await next(iter(self._connections)).gone.wait()

    async def open(self, call: ClientCall) -> ClientConnection:
        """Send a call's request on the current connection (`client_call.Opener`).

        Raises:
            VendorUnreachable: no connection could be made.
            VendorReplaced: another driver than the call's serves the socket.
        """
        for _ in range(_OPEN_ATTEMPTS):
            connection = self._current() or await self._dialled()
            if call.to and connection.name != call.to:
                self._renew()  # the next call asks for the name again
                raise VendorReplaced(self.path, connection.name)
            if await connection.begin(call):
                return connection
        raise VendorUnreachable(self.path, "it closes every connection before a call can begin")

    def _current(self) -> ClientConnection | None:
        connection = self._connection
        if connection is None:
            return None
        if connection.usable and self._file_id == (file_id(self.path) or self._file_id):
            return connection
        self._renew()
        return None

    def _renew(self) -> None:
        """Use the connection for no more calls; running ones go on."""
        if self._connection is not None:
            self._connection.retire()
            self._connection = None

    async def _dialled(self) -> ClientConnection:
        """The connection of the present dial, which all waiting calls share."""
        if self._dial is None:
            self._refuse_during_backoff()
            self._dial = asyncio.get_running_loop().create_task(self._connect(), name=f"dial {self.path}")
            self._dial.add_done_callback(self._dial_ended)
        dialled = await asyncio.shield(self._dial)
        if isinstance(dialled, VendorUnreachable):
            raise VendorUnreachable(self.path, dialled.why)  # an exception of its own for each call
        return dialled

    def _dial_ended(self, dial: asyncio.Task[ClientConnection | VendorUnreachable]) -> None:
        self._dial = None
        if dial.cancelled():
            return
        dialled = dial.result()
        if self._closed and isinstance(dialled, ClientConnection):
            dialled.shut()
        elif isinstance(dialled, VendorUnreachable):
            self._failed = dialled
            self._failures += 1
            self._retry_at_s = asyncio.get_running_loop().time() + _REDIAL.wait_s(self._failures)
        else:
            self._failed, self._failures = None, 0
            self._connection, self._file_id = dialled, self._dialled_file_id

    def _refuse_during_backoff(self) -> None:
        if self._closed:
            raise VendorUnreachable(self.path, "the channel is closed")
        if self._failed is None or self._dialled_file_id != file_id(self.path):
            return
        if asyncio.get_running_loop().time() < self._retry_at_s:
            raise VendorUnreachable(self.path, self._failed.why)

    async def _connect(self) -> ClientConnection | VendorUnreachable:
        self._dialled_file_id = file_id(self.path)
        if len(os.fsencode(self.path)) > LONGEST_SOCKET_PATH_BYTES:
            return VendorUnreachable(
                self.path, f"its path is too long: a UNIX socket's has {LONGEST_SOCKET_PATH_BYTES} bytes at most"
            )
        connection: ClientConnection | None = None
        usable = False
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                connection = await self._socket_connected()
                await connection.ready
            connection.name = await self._asked_who(connection)
            usable = True
        except (OSError, ValueError, VendorConnectionError) as error:
            return VendorUnreachable(self.path, self._why(error, accepted=connection is not None))
        finally:
            if connection is not None and not usable:
                connection.shut()
        return connection

    async def _asked_who(self, connection: ClientConnection) -> str:
        alone = _Alone(self.path, self.max_message_bytes, connection)
        try:
            async with asyncio.timeout(self._who_timeout_s):
                return await self._who(lambda method, request: ClientCall(alone, method, request, self._who_timeout_s))
        except TimeoutError:
            raise ValueError(f"it did not give its name within {self._who_timeout_s:g} s") from None

    async def _socket_connected(self) -> ClientConnection:
        _, connection = await asyncio.get_running_loop().create_unix_connection(
            lambda: ClientConnection(self.path, self._connections.discard), self.path
        )
        if not connection.gone.is_set():
            self._connections.add(connection)
        return connection

    def _why(self, error: Exception, *, accepted: bool) -> str:
        """The reason why a dial failed, for people."""
        if isinstance(error, VendorUnreachable):
            return error.why
        if isinstance(error, TimeoutError):
            what = "it accepted the connection but sent no HTTP/2 settings" if accepted else "no connection"
            return f"{what} within {self._connect_timeout_s:g} s"
        if isinstance(error, OSError) and error.errno in _DIAL_ERRORS:
            return _DIAL_ERRORS[error.errno]
        return str(error) or type(error).__name__


class _Alone:
    """Opens calls on a connection that the channel does not use yet (`client_call.Opener`)."""

    def __init__(self, path: str, max_message_bytes: int, connection: ClientConnection) -> None:
        self.path = path
        self.max_message_bytes = max_message_bytes
        self._connection = connection

    async def open(self, call: ClientCall) -> ClientConnection:
        """Send a call's request."""
        if not await self._connection.begin(call):
            raise VendorUnreachable(self.path, "it closed the connection before it gave its name")
        return self._connection


_DIAL_ERRORS = {
    errno.ECONNREFUSED: "connection refused (is the driver running?)",
    errno.ENOENT: "no such socket (is the driver running?)",
    errno.EACCES: "permission denied (may this user use the socket and its directories?)",
    errno.ENOTSOCK: "it is not a socket",
    errno.ECONNRESET: "it closed the connection at once (does the driver crash?)",
    errno.EAGAIN: "its queue of new connections is full (does the driver hang?)",
}
