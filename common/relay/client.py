"""The gRPC client: one kept connection to the vendor's driver, and calls of any method as bytes.

Rules:

* A status is the vendor's only if the vendor sent it in trailers, on a connection that lived on. Any other end of a
  call is a `VendorConnectionError` (docs/csi-contract.md#a-final-code-makes-a-sidecar-forget).
* The channel dials at the first call. It dials again after the connection has died, or when its owner has found that
  the socket's file has changed (`check_socket`). It sends no keepalive pings: grpc-go closes connections for them.
* On each new connection the channel first asks for the driver's name. It sends no call for another driver there.
* There is one dial at a time. For up to a second after a failed dial, calls fail at once with its reason, unless the
  socket's file has changed.
"""

import asyncio
import errno
import logging
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

from common.links.backoff import Backoff
from common.net.sockets import FileId, file_id
from common.parsers import LONGEST_SOCKET_PATH_BYTES
from common.relay.client_call import AwaitedCall, ClientCall
from common.relay.client_connection import ClientConnection
from common.relay.errors import OUT_OF_RESOURCES, VendorConnectionError, VendorUnreachable

log = logging.getLogger("csi_bridge.relay")

# The waits between failing dials. As with sidecars, a driver that comes back is found within a second.
_REDIAL = Backoff(first_s=0.02, most_s=1.0)

NAME_TIMEOUT_S = 10.0  # the limit of the question for a driver's name

Ask = Callable[[str, bytes], AwaitedCall]  # makes a call of a method with a request, on one connection


async def _unidentified(_ask: Ask) -> str:
    return ""


class Channel:
    """Calls to one driver socket."""

    def __init__(
        self,
        path: str | Path,
        *,
        max_message_bytes: int,
        identify: Callable[[Ask], Awaitable[str]] = _unidentified,
        connect_timeout_s: float = 5.0,
    ) -> None:
        """`identify` asks a new connection for the driver's name; it raises ValueError with a reason in words."""
        self.path = str(path)
        self.max_message_bytes = max_message_bytes  # of an answer
        self._identify = identify
        self._connect_timeout_s = connect_timeout_s
        self._connection: ClientConnection | None = None
        self._file_id: FileId = None  # the socket's file at the last dial
        self._dial: asyncio.Task[ClientConnection | str] | None = None
        self._waiting: dict[ClientCall, None] = {}  # the calls that wait for the dial
        self._failure = ""  # why the last dial failed
        self._failures = 0
        self._retry_at_s = 0.0
        self._connections: set[ClientConnection] = set()
        self._closed = False

    @property
    def connected(self) -> bool:
        return self._connection is not None and self._connection.usable

    def call(
        self,
        method: str,
        request: bytes,
        *,
        timeout_s: float | None = None,
        driver: str = "",
        may_begin: Callable[[], bool] | None = None,
    ) -> AwaitedCall:
        """A call for a coroutine. It starts when its first message is awaited. See `ClientCall`."""
        return AwaitedCall(
            ClientCall(self.open, method, request, timeout_s=timeout_s, driver=driver, may_begin=may_begin)
        )

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

    def open(self, call: ClientCall) -> None:
        """Send a call's request on the current connection, or once one is dialled.

        The call may end before this returns. It fails with `VendorUnreachable` if no connection can be made, and is not
        sent if another driver than its own serves the socket.
        """
        connection = self._connection
        if (
            connection is None
            or connection.retired
            or (transport := connection.transport) is None
            or transport.is_closing()
        ):
            self._renew()
            self._await_dial(call)
        elif call.driver and connection.name != call.driver:
            self._renew()  # the next call asks for the name again
            text = f"its socket unix://{self.path} now belongs to driver {connection.name}"
            call.fail(VendorConnectionError(text, sent=False))
        else:
            connection.begin(call)

    def check_socket(self) -> None:
        """Use a new connection if another process listens at the socket now: the old driver may go on beside it.

        A sidecar never checks. To check before each call would cost a tenth of the call's time.
        """
        if self._file_id != (file_id(self.path) or self._file_id):  # a missing file is no replacement
            self._renew()
            if self._dial is not None and self._dial.cancel():  # its driver may hang before it gives its name
                self._begin_dial()

    def _renew(self) -> None:
        # Running calls go on.
        connection = self._connection
        self._connection = None
        if connection is not None:
            connection.retire()

    def _await_dial(self, call: ClientCall) -> None:
        if self._dial is None:
            if why := self._refusal():
                call.fail(VendorUnreachable(self.path, why))
                return
            self._begin_dial()
        call.queue = self._waiting
        self._waiting[call] = None

    def _begin_dial(self) -> None:
        self._dial = asyncio.get_running_loop().create_task(self._connect(), name=f"dial {self.path}")
        self._dial.add_done_callback(self._dial_ended)

    def _dial_ended(self, dial: asyncio.Task[ClientConnection | str]) -> None:
        if dial is not self._dial:  # `check_socket` has begun another
            return
        self._dial = None
        dialled = "CSI Bridge is stopping" if dial.cancelled() else dial.result()
        if isinstance(dialled, str):
            self._failure = dialled
            self._failures += 1
            self._retry_at_s = asyncio.get_running_loop().time() + _REDIAL.wait_s(self._failures)
        elif self._closed:
            dialled.shut()
        else:
            self._failures = 0
            self._retry_at_s = 0.0
            self._connection = dialled
        waiting = self._waiting
        self._waiting = {}
        while waiting:  # `fail` and `open` may cancel other waiting calls, which then leave `waiting`
            call = next(iter(waiting))
            del waiting[call]
            if isinstance(dialled, str):
                call.fail(VendorUnreachable(self.path, dialled))
            elif dialled.usable:
                self.open(call)
            else:
                dialled.turn_away(call)

    def _refusal(self) -> str:
        if self._closed:
            return "the channel is closed"
        is_early = asyncio.get_running_loop().time() < self._retry_at_s
        return self._failure if is_early and self._file_id == file_id(self.path) else ""

    async def _connect(self) -> ClientConnection | str:
        connection: ClientConnection | None = None
        usable = False
        try:
            self._file_id = file_id(self.path)
            if len(os.fsencode(self.path)) > LONGEST_SOCKET_PATH_BYTES:
                return f"its path is too long: a UNIX socket's has {LONGEST_SOCKET_PATH_BYTES} bytes at most"
            async with asyncio.timeout(self._connect_timeout_s):
                _, connection = await asyncio.get_running_loop().create_unix_connection(
                    lambda: ClientConnection(self.path, self.max_message_bytes, self._connections.discard), self.path
                )
                if not connection.gone.is_set():
                    self._connections.add(connection)
                await connection.ready
            connection.name = await self._ask_name(connection)
            usable = True
        except (OSError, ValueError, VendorConnectionError) as error:
            return self._dial_error(error, accepted=connection is not None)
        except Exception:
            log.exception("a bug in CSI Bridge ended a dial to %s", self.path)
            return "CSI Bridge failed; its log has the details"
        finally:
            if connection is not None and not usable:
                connection.shut()
        return connection

    async def _ask_name(self, connection: ClientConnection) -> str:
        def begin(call: ClientCall) -> None:
            if connection.usable:
                connection.begin(call)
            else:
                call.fail(VendorUnreachable(self.path, "it closed the connection before it gave its name"))

        try:
            async with asyncio.timeout(NAME_TIMEOUT_S):
                return await self._identify(
                    lambda method, request: AwaitedCall(ClientCall(begin, method, request, timeout_s=NAME_TIMEOUT_S))
                )
        except TimeoutError:
            raise ValueError(f"it did not give its name within {NAME_TIMEOUT_S:g} s") from None

    def _dial_error(self, error: Exception, *, accepted: bool) -> str:
        if isinstance(error, VendorUnreachable):
            return error.why
        if isinstance(error, TimeoutError):
            what = "it accepted the connection but sent no HTTP/2 settings" if accepted else "no connection"
            return f"{what} within {self._connect_timeout_s:g} s"
        if isinstance(error, OSError) and error.errno in _DIAL_ERRORS:
            return _DIAL_ERRORS[error.errno]
        return str(error) or type(error).__name__


_DIAL_ERRORS = {
    errno.ECONNREFUSED: "connection refused (is the driver running?)",
    errno.ENOENT: "no such socket (is the driver running?)",
    errno.EACCES: "permission denied (may this user use the socket and its directories?)",
    errno.ENOTSOCK: "it is not a socket",
    errno.ECONNRESET: "it closed the connection at once (does the driver crash?)",
    errno.EAGAIN: "its queue of new connections is full (does the driver hang?)",
    **dict.fromkeys((errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS), OUT_OF_RESOURCES),
}
