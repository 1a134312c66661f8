"""The gRPC server against real sidecars' libraries and against clients that break every rule."""

import asyncio
import contextlib
import os
from pathlib import Path

import grpc
import grpc.aio
import pytest

from common.relay.server import CancelReason, ServerCall
from common.status import Code, Status
from tests.integration.relay.support import echo, serving, sidecar_at

OK = Status(Code.OK)


async def failure(call: grpc.aio.UnaryUnaryCall[bytes, bytes]) -> tuple[int, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code().value[0], caught.value.details() or ""


async def test_a_call_carries_method_request_timeout_and_answer(path: Path) -> None:
    seen: list[ServerCall] = []

    async def handler(call: ServerCall) -> None:
        seen.append(call)
        await echo(call)

    async with serving(path, handler), sidecar_at(path) as sidecar:
        assert await sidecar.unary_unary("/csi.v1.Identity/Probe")(b"request", timeout=30) == b"request"
        assert await sidecar.unary_unary("/a.B/Imagined")(b"") == b""
    assert [(call.method, call.request) for call in seen] == [
        ("/csi.v1.Identity/Probe", b"request"),
        ("/a.B/Imagined", b""),
    ]
    assert seen[0].timeout_s is not None
    assert 25 < seen[0].timeout_s < 31  # C-core rounds up
    assert seen[1].timeout_s is None


@pytest.mark.parametrize("message", ["plain", "50% é\n\tlines ", "", "x" * 3000])
async def test_a_status_reaches_the_sidecar_unchanged(path: Path, message: str) -> None:
    async def handler(call: ServerCall) -> None:
        call.finish(Status(Code.INTERNAL, message))

    async with serving(path, handler), sidecar_at(path) as sidecar:
        assert await failure(sidecar.unary_unary("/a/B")(b"")) == (Code.INTERNAL, message)


async def test_a_message_longer_than_the_clients_header_limit_arrives_cut(path: Path) -> None:
    async def handler(call: ServerCall) -> None:
        call.finish(Status(Code.ABORTED, "x" * 100_000))

    async with serving(path, handler), sidecar_at(path) as sidecar:
        code, message = await failure(sidecar.unary_unary("/a/B")(b""))
    assert code == Code.ABORTED
    assert message.startswith("xxx")
    assert message.endswith("x...")


async def test_a_client_beyond_the_limit_of_connections_is_hung_up_on_and_those_there_stay(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(path, echo, max_connections=1) as server, sidecar_at(path) as sidecar:
        call = sidecar.unary_unary("/a/B")
        assert await call(b"first") == b"first"
        reader, writer = await asyncio.open_unix_connection(path)
        with contextlib.suppress(ConnectionResetError):
            await reader.read()  # to its end
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        assert await call(b"still there") == b"still there"
        assert len(server.connections) == 1
    assert "a client's connection was closed: 1 connections is the limit" in caplog.messages


@pytest.mark.parametrize(
    "error", [KeyError("secret"), asyncio.CancelledError(), None], ids=["raises", "cancels", "ends"]
)
async def test_a_handler_that_ends_without_a_status_gives_the_owners(path: Path, error: BaseException | None) -> None:
    async def handler(call: ServerCall) -> None:
        if call.method == "/a/Late":
            await call.send(b"first")
        if error is not None:
            raise error

    said = f"on_error: {type(error).__name__}"
    async with serving(path, handler), sidecar_at(path) as sidecar:
        for method in ("/a/B", "/a/Late"):
            assert await failure(sidecar.unary_unary(method)(b"")) == (Code.UNAVAILABLE, said)


async def test_only_the_first_finish_counts(path: Path) -> None:
    results: list[bool] = []

    async def handler(call: ServerCall) -> None:
        call.finish(Status(Code.ABORTED, "first"), results.append)
        call.finish(OK, results.append)
        with pytest.raises(RuntimeError, match="after the status"):
            await call.send(b"late")

    async with serving(path, handler), sidecar_at(path) as sidecar:
        assert await failure(sidecar.unary_unary("/a/B")(b"")) == (Code.ABORTED, "first")
    assert results == [True, False]


class Held:
    """A handler that waits, and notes how it was cancelled."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.cancelled: asyncio.Future[CancelReason | None] = asyncio.get_running_loop().create_future()
        self.finished: bool | None = None

    async def __call__(self, call: ServerCall) -> None:
        self.began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            call.finish(Status(Code.DEADLINE_EXCEEDED, "said the handler"), self._finish)
            self.cancelled.set_result(call.cancelled_by)
            raise

    def _finish(self, taken: bool) -> None:
        self.finished = taken


async def test_a_sidecar_that_cancels_has_the_handler_cancelled(path: Path) -> None:
    handler = Held()
    async with serving(path, handler) as server, sidecar_at(path) as sidecar:
        call = sidecar.unary_unary("/a/B")(b"")
        await handler.began.wait()
        assert server.calls_in_flight == 1
        call.cancel()
        assert await handler.cancelled is CancelReason.CALLER_CANCELLED
        assert handler.finished is False


async def test_a_sidecar_that_goes_away_has_its_handlers_cancelled(path: Path) -> None:
    handler = Held()
    async with serving(path, handler) as server:
        async with sidecar_at(path) as sidecar:
            call = sidecar.unary_unary("/a/B")(b"")
            await handler.began.wait()
            await sidecar.close()
        assert await handler.cancelled in {CancelReason.CALLER_LOST, CancelReason.CALLER_CANCELLED}
        assert call.done()
    assert server.calls_in_flight == 0


async def test_a_deadline_cancels_the_handler_whose_words_are_used(path: Path) -> None:
    handler = Held()
    async with serving(path, handler), sidecar_at(path) as sidecar:
        await sidecar.channel_ready()
        while not handler.began.is_set():  # on a busy machine a deadline may pass before the handler begins
            call = sidecar.unary_unary("/a/B")(b"", timeout=1.0)
            assert (await failure(call))[0] == Code.DEADLINE_EXCEEDED
        assert await handler.cancelled in {CancelReason.DEADLINE, CancelReason.CALLER_CANCELLED}


async def test_draining_ends_calls_first_and_the_connection_after_them(path: Path) -> None:
    began, release = asyncio.Event(), asyncio.Event()

    async def handler(call: ServerCall) -> None:
        began.set()
        await release.wait()
        await echo(call)

    async with serving(path, handler) as server, sidecar_at(path) as sidecar:
        call = asyncio.ensure_future(sidecar.unary_unary("/a/B")(b"held"))
        await began.wait()
        drained = asyncio.ensure_future(server.drain())
        await asyncio.sleep(0)
        assert await failure(sidecar.unary_unary("/a/B")(b"")) == (Code.UNAVAILABLE, CancelReason.CLOSING)
        assert not os.path.exists(path)  # noqa: ASYNC240, PTH110 - one look
        assert not drained.done()
        release.set()
        assert await call == b"held"
        await drained
        assert not server.connections


async def test_closing_answers_the_calls_under_way(path: Path) -> None:
    began = asyncio.Event()

    async def handler(_call: ServerCall) -> None:
        began.set()
        await asyncio.Event().wait()

    async with serving(path, handler) as server, sidecar_at(path) as sidecar:
        call = sidecar.unary_unary("/a/B")(b"")
        await began.wait()
        await server.close()
        assert await failure(call) == (Code.UNAVAILABLE, CancelReason.CLOSING)
        await server.close()
