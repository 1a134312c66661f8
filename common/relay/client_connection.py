"""A client connection: one HTTP/2 connection to the vendor's driver, and the calls on it."""

import asyncio
from collections.abc import Callable

from common.relay.client_call import ClientCall
from common.relay.connection import Connection
from common.relay.errors import (
    Http2Error,
    VendorCallWithheld,
    VendorConnectionError,
    VendorStreamRefused,
    VendorUnreachable,
)
from common.relay.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_BYTES,
    HEADERS,
    MAX_STREAM_ID,
    ErrorCode,
    error_name,
    pack_head,
    ping,
    rst_stream,
)
from common.relay.framing import PREFIX_BYTES, pack_prefix
from common.relay.hpack import Header
from common.relay.library_texts import made_by_library
from common.relay.metadata import request_block
from common.status import Code, Status, code_name

PROOF_OF_LIFE_S = 2.0
"""How long a driver may take to answer a PING after a status that a dying one could have sent."""

LAST_WORDS_S = 0.05
"""How long the driver's GOAWAY may come after that. A driver that stops gracefully first cancels its work, then answers
INTERNAL and the PING, and sends GOAWAY last (grpc-go's GracefulStop)."""

DYING_CODES = frozenset({Code.CANCELLED, Code.UNKNOWN, Code.RESOURCE_EXHAUSTED, Code.INTERNAL})
"""The codes that a stopping driver's library answers. All but the first are final for some sidecar
(docs/csi-contract.md#a-final-code-makes-a-sidecar-forget)."""


class ClientConnection(Connection[ClientCall]):
    """One connection, from the dial to its end."""

    def __init__(self, path: str, on_closed: Callable[["ClientConnection"], None]) -> None:
        super().__init__(client=True)
        self.path = path
        self.name = ""
        """The driver's name, once the channel has asked for it."""
        self.ready: asyncio.Future[None] = self._loop.create_future()
        self.retired = False
        self.gone = asyncio.Event()
        self._shut = False
        self._leaving = False
        self._on_closed = on_closed
        self._queue: dict[ClientCall, None] = {}
        self._pings = 0
        self._ponged: asyncio.Future[bool] | None = None
        """Hears whether the PING that is under way was answered. There is one at a time."""
        self._next_ponged: asyncio.Future[bool] | None = None
        """The same for the PING after it, for the statuses that came after that one left."""

    @property
    def usable(self) -> bool:
        """Whether new calls may go here."""
        return self.open and not self.retired

    def retire(self) -> None:
        """Take no new calls, and close when the last one ends."""
        self.retired = True
        self._admit()
        self._close_if_idle()

    def shut(self) -> None:
        """Close now; running calls fail."""
        self.retired = self._shut = True
        self._close_in_time()

    # Calls.

    def begin(self, call: ClientCall) -> None:
        """Open a stream for a call and send its request, once the driver's limit of streams allows.

        If the connection becomes unusable first, the call opens again elsewhere.
        """
        if len(self.streams) >= self.peer_max_streams:
            call.queue = self._queue
            self._queue[call] = None
            return
        if call.may_begin is not None and not call.may_begin():
            call.fail(VendorCallWithheld())
            return
        call.connection = self
        call.stream_id = self.highest_id = stream_id = self.highest_id + 2
        call.send_window = self.peer_window
        self.streams[stream_id] = call
        if stream_id == MAX_STREAM_ID:  # a new connection has new ids (section 5.1.1)
            self.retired = True
        block, request = request_block(call.method, call.timeout_s), call.request
        size = len(request) + PREFIX_BYTES
        if (self.table_said and not self.paused and not self.outgoing and len(block) <= FRAME_BYTES
                and size <= FRAME_BYTES and size <= self.send_window and size <= self.peer_window):  # fmt: skip
            call.send_window -= size
            self.send_window -= size
            self.out += (
                pack_head(len(block) << 8 | HEADERS, END_HEADERS, stream_id), block,
                pack_head(size << 8 | DATA, END_STREAM, stream_id), pack_prefix(0, len(request)), request,
            )  # fmt: skip
        else:
            self.send_headers(stream_id, block, end=False)
            self.send_message(call, request, end=True)
        self.flush()

    def _admit(self) -> None:
        """Begin the waiting calls for which there is room, or let all open again if the connection takes no more."""
        while self._queue and (not self.usable or len(self.streams) < self.peer_max_streams):
            call = next(iter(self._queue))
            del self._queue[call]
            call.queue = None
            if self.usable:
                self.begin(call)
            else:
                call.open_again()

    def _close_if_idle(self) -> None:
        if self.retired and not self.streams and self._ponged is None and self.transport is not None:
            self.transport.close()

    # For its calls (`client_call.ClientCall`).

    def answered(self, call: ClientCall) -> None:
        """End the stream of a call that the driver has answered, also if it has not read the whole request."""
        del self.streams[call.stream_id]
        if call.stream_id in self.outgoing:
            self.out.append(rst_stream(call.stream_id, ErrorCode.CANCEL))
        if self.outgoing or self._queue or self.retired:
            self.leave(call)

    def leave(self, call: ClientCall) -> None:
        """Let others have the place of a call whose stream is over."""
        self.drop_outgoing(call.stream_id)
        self._admit()
        if self.retired:
            self._loop.call_soon(self._close_if_idle)  # its status may yet need a PING

    def cancel(self, call: ClientCall) -> None:
        """Cancel the call with RST_STREAM (CANCEL)."""
        if self.streams.get(call.stream_id) is call:
            if self.open:
                self.reset(call.stream_id, ErrorCode.CANCEL)
                self.flush()
            self.streams.pop(call.stream_id, None)
            self.leave(call)

    def judge(self, call: ClientCall, status: Status) -> None:
        """Tell a call whether its status is the vendor's own: at once, or after a PING.

        When a driver stops, its library ends running calls with one of `DYING_CODES` before it closes the connection. A
        driver that goes on answers a PING and sends no GOAWAY.
        """
        if not status.code:
            call.believed(status)
        elif made_by_library(status.code, status.message):
            why = f"the driver's gRPC library, not the driver, answered {code_name(status.code)}"
            call.fail(_doubted(status, why))
        elif status.code in DYING_CODES:
            call.later = self._loop.create_task(
                self._believe(call, status, self._ping()), name=f"proof of life of {self.path}"
            )
        else:
            call.believed(status)

    def _ping(self) -> asyncio.Future[bool] | None:
        """The answer to the next PING; None if the connection is over."""
        if not self.open:
            return None
        answer = self._next_ponged = self._next_ponged or self._loop.create_future()
        self._ping_if_due()
        return answer

    def _ping_if_due(self) -> None:
        """Send a PING if a status waits for one and none is under way.

        grpc-go's server counts pings without a frame of its own between them, and sends GOAWAY at the third (keepalive
        enforcement).
        """
        if self._next_ponged is not None and self._ponged is None and self.open:
            self._ponged, self._next_ponged = self._next_ponged, None
            self._pings += 1
            self.out.append(ping(self._pings.to_bytes(8, "big")))
            self.flush_soon()

    async def _believe(self, call: ClientCall, status: Status, answer: asyncio.Future[bool] | None) -> None:
        if answer is not None and await self._lives(answer):
            call.believed(status)
        else:
            why = f"the driver answered {code_name(status.code)} as it was stopping"
            call.fail(_doubted(status, why))

    async def _lives(self, answer: asyncio.Future[bool]) -> bool:
        try:
            async with asyncio.timeout(PROOF_OF_LIFE_S):
                answered = await asyncio.shield(answer)
        except TimeoutError:
            if self.retired and not self.streams:
                self.shut()
            return False
        if answered and not self._leaving:
            await asyncio.sleep(LAST_WORDS_S)
        return answered and not self._leaving

    # HTTP/2's side.

    def settings_received(self) -> None:
        """Mark the connection as ready: the driver speaks HTTP/2."""
        if not self.ready.done():
            self.ready.set_result(None)
        self._admit()

    def stream_opened(self, stream_id: int, _fields: list[Header], *, ended: bool) -> None:  # noqa: ARG002
        """Ignore late headers: a driver opens no stream."""
        self.check_not_idle(stream_id, "HEADERS")

    def ping_acknowledged(self, data: bytes) -> None:
        """Wake the waiters for this PING: the driver is alive."""
        if self._ponged is not None and data == self._pings.to_bytes(8, "big"):
            self._ponged.set_result(True)
            self._ponged = None
        self._ping_if_due()
        self._close_if_idle()

    def goaway_received(self, last_stream_id: int, code: int, debug: bytes) -> None:
        """Take no new calls here, as the driver asks. Calls above `last_stream_id` never began."""
        self.retired = self._leaving = True
        text = f"the driver is closing the connection (GOAWAY {error_name(code)}"
        text += f", {debug[:80].decode('utf-8', 'replace')})" if debug else ")"
        for stream_id in [stream for stream in self.streams if stream > last_stream_id]:
            if (call := self.streams.pop(stream_id, None)) is not None:
                self.drop_outgoing(stream_id)
                call.fail(VendorStreamRefused(f"{text} and did not begin the call"))
        if not self.ready.done():
            self.ready.set_exception(VendorUnreachable(self.path, text))
        self._admit()
        self._close_if_idle()

    def closed(self, why: Exception | None) -> None:
        """End every running call: the connection is gone."""
        if not self.ready.done():
            self.ready.set_exception(VendorUnreachable(self.path, _before_settings(why)))
        calls = list(self.streams.values())
        self.streams.clear()
        for ponged in (self._ponged, self._next_ponged):
            if ponged is not None:
                ponged.set_result(False)
        self._ponged = self._next_ponged = None
        self.gone.set()
        self._on_closed(self)
        self._admit()
        for call in calls:
            call.fail(self._lost(why))

    def _lost(self, why: Exception | None) -> VendorConnectionError:
        if isinstance(why, Http2Error):
            text = f"the driver broke HTTP/2 during the call: {why}"
        elif self._shut:
            text = "CSI Bridge closed the connection to the driver during the call"
        else:
            text = "the driver closed the connection during the call (did it stop or crash?)"
        return VendorConnectionError(text, sent=True)


def _doubted(status: Status, why: str) -> VendorConnectionError:
    """The end of a call whose status tells nothing about it."""
    return VendorConnectionError(f"{why}: {status.message}" if status.message else why, sent=True)


def _before_settings(why: Exception | None) -> str:
    if isinstance(why, Http2Error):
        return f"the process that listens there does not speak HTTP/2 (gRPC): {why}"
    return "it closed the connection before it sent HTTP/2 settings (is it a gRPC server?)"
