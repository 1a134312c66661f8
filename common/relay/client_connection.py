"""A client connection: one HTTP/2 connection to the vendor's driver, and the calls on it."""

import asyncio
from collections.abc import Callable

from common.relay.client_call import ClientCall
from common.relay.connection import Connection
from common.relay.errors import Http2Error, VendorCallWithheld, VendorConnectionError, VendorUnreachable
from common.relay.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_BYTES,
    HEADERS,
    MAX_STREAM_ID,
    PING,
    PREFIX_BYTES,
    ErrorCode,
    error_name,
    frame,
    pack_head,
    pack_prefix,
    rst_stream,
)
from common.relay.hpack import Header
from common.relay.metadata import made_by_library, request_block
from common.status import Code, Status, code_name

PROOF_OF_LIFE_S = 2.0  # how long a driver may take to answer a PING after a status that a dying one could have sent

# How long the driver's GOAWAY may come after that. A driver that stops gracefully first cancels its work, then answers
# INTERNAL and the PING, and sends GOAWAY last (grpc-go's GracefulStop).
LAST_WORDS_S = 0.05

# The codes that a stopping driver's library answers. All but the first are final for some sidecar
# (docs/csi-contract.md#a-final-code-makes-a-sidecar-forget).
DYING_CODES = frozenset({Code.CANCELLED, Code.UNKNOWN, Code.RESOURCE_EXHAUSTED, Code.INTERNAL})


class ClientConnection(Connection[ClientCall]):
    """One connection, from the dial to its end."""

    def __init__(self, path: str, max_message_bytes: int, on_closed: Callable[["ClientConnection"], None]) -> None:
        super().__init__(client=True)
        self.path = path
        self.max_message_bytes = max_message_bytes
        self.name = ""  # the driver's, once the channel has asked for it
        self.ready: asyncio.Future[None] = self._loop.create_future()  # done when the driver speaks HTTP/2
        self.retired = False  # whether it takes no new calls
        self.gone = asyncio.Event()  # set when it is over
        self.queue: dict[ClientCall, None] = {}  # the calls that wait for a stream
        self._shut = False
        self._on_closed = on_closed
        self._is_leaving = False  # whether the driver has said that it goes, or has ended the connection
        self._doubts: list[tuple[ClientCall, Status]] = []  # the statuses in doubt that the next PING shall prove
        self._pinged: list[tuple[ClientCall, Status]] = []  # those that wait for the PING under way, one at a time
        self._pings = 0
        self._no_pong: asyncio.TimerHandle | None = None

    @property
    def usable(self) -> bool:
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
        """Open a stream for a call and send its request, once the driver's limit of streams allows."""
        if len(self.streams) >= self.peer_max_streams:
            call.queue = self.queue
            self.queue[call] = None
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
        block = request_block(call.method, call.timeout_s)
        request = call.request
        size = len(request) + PREFIX_BYTES
        if (self.table_size_sent and not self.paused and not self.outgoing and len(block) <= FRAME_BYTES
                and size <= min(self.send_window, self.peer_window, FRAME_BYTES)):  # fmt: skip
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

    def turn_away(self, call: ClientCall) -> None:
        """Let a call open again: the connection became unusable before any byte of the call was written."""
        call.again(VendorUnreachable(self.path, "it closes every connection before a call can begin"))

    def _admit(self) -> None:
        while self.queue and (not self.usable or len(self.streams) < self.peer_max_streams):
            call = next(iter(self.queue))
            del self.queue[call]
            (self.begin if self.usable else self.turn_away)(call)

    def _close_if_idle(self) -> None:
        if self.retired and not self.streams and not self._pinged and self.transport is not None:
            self.flush(at_once=True)
            self.transport.close()

    # For its calls (`client_call.ClientCall`).

    def leave(self, call: ClientCall) -> None:
        """Let others have the place of a call that has ended. Reset its stream, unless both sides have ended it."""
        self.streams.pop(call.stream_id, None)
        if self.open and (not call.remote_ended or call.stream_id in self.outgoing):
            self.out.append(rst_stream(call.stream_id, ErrorCode.CANCEL))
        self.drop_outgoing(call.stream_id)
        self._admit()
        if self.retired:
            self._loop.call_soon(self._close_if_idle)  # its status may yet need a PING

    def judge(self, call: ClientCall, status: Status) -> None:
        """Tell a call whether its status, which is not OK, is the vendor's own: at once, or after a PING.

        When a driver stops, its library ends running calls with one of `DYING_CODES` before it closes the connection. A
        driver that goes on answers a PING and sends no GOAWAY.
        """
        if made_by_library(status):
            call.fail(_doubted(status, f"the driver's gRPC library, not the driver, answered {code_name(status.code)}"))
        elif status.code in DYING_CODES:
            self._doubts.append((call, status))
            self._ping_if_due()
        else:
            call.believed(status)

    def _ping_if_due(self) -> None:
        # One at a time: grpc-go's server counts pings without a frame of its own between them, and sends GOAWAY at the
        # third (keepalive enforcement).
        if self._is_leaving or not self.open:
            self._unproved()
        elif self._doubts and not self._pinged:
            self._pinged = self._doubts
            self._doubts = []
            self._pings += 1
            self.out.append(frame(PING, 0, 0, self._pings.to_bytes(8, "big")))
            self.flush_soon()
            self._no_pong = self._loop.call_later(PROOF_OF_LIFE_S, self._never_ponged)

    def ping_acknowledged(self, data: bytes) -> None:
        if self._pinged and self._no_pong is not None and data == self._pings.to_bytes(8, "big"):
            self._no_pong.cancel()
            self._loop.call_later(LAST_WORDS_S, self._end, self._pinged)
            self._pinged = []
        self._ping_if_due()
        self._close_if_idle()

    def _never_ponged(self) -> None:
        self._unproved()
        if self.retired and not self.streams:
            self.shut()

    def _unproved(self) -> None:
        doubts = self._pinged + self._doubts
        self._doubts = []
        self._pinged = []
        self._end(doubts, lives=False)

    def _end(self, doubts: list[tuple[ClientCall, Status]], *, lives: bool = True) -> None:
        for call, status in doubts:
            if lives and not self._is_leaving:
                call.believed(status)
            else:
                call.fail(_doubted(status, f"the driver answered {code_name(status.code)} as it was stopping"))

    # HTTP/2's side.

    def settings_received(self) -> None:
        if not self.ready.done():
            self.ready.set_result(None)
        self._admit()

    def stream_opened(self, stream_id: int, _fields: list[Header], *, ended: bool) -> None:  # noqa: ARG002
        """Ignore late headers: a driver opens no stream."""
        self.check_not_idle(stream_id, "HEADERS")

    def goaway_received(self, last_stream_id: int, code: int, debug: bytes) -> None:
        self.retired = self._is_leaving = True
        text = f"the driver is closing the connection (GOAWAY {error_name(code)}"
        text += f", {debug[:80].decode('utf-8', 'replace')})" if debug else ")"
        for stream_id in [stream for stream in self.streams if stream > last_stream_id]:
            if (call := self.streams.pop(stream_id, None)) is not None:
                self.drop_outgoing(stream_id)
                call.again(VendorConnectionError(f"{text} and did not begin the call", sent=True))
        if not self.ready.done():
            self.ready.set_exception(VendorUnreachable(self.path, text))
        self._admit()
        self._ping_if_due()
        self._close_if_idle()

    def closed(self, why: Exception | None) -> None:
        if not self.ready.done():
            self.ready.set_exception(VendorUnreachable(self.path, _before_settings(why)))
        if not self.retired:
            self._is_leaving = True
        if self._no_pong is not None:
            self._no_pong.cancel()
        calls = list(self.streams.values())
        self.streams.clear()
        self.gone.set()
        self._on_closed(self)
        self._admit()
        self._unproved()
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
    return VendorConnectionError(f"{why}: {status.message}" if status.message else why, sent=True)


def _before_settings(why: Exception | None) -> str:
    if isinstance(why, Http2Error):
        return f"the process that listens there does not speak HTTP/2 (gRPC): {why}"
    return "it closed the connection before it sent HTTP/2 settings (is it a gRPC server?)"
