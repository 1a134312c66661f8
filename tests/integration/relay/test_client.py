"""The gRPC client against real drivers' libraries: bytes there and back, statuses unchanged, cancels, restarts."""

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import grpc.aio
import pytest

from common.relay.client import Ask
from common.relay.errors import (
    VendorConnectionError,
    VendorUnreachable,
)
from common.status import Code, Status
from tests.integration.relay.support import MIB, Vendor, channel_to, vendor_at
from tests.kit.waiting import until


async def test_grpcios_asyncio_server_is_called_as_well(path: Path) -> None:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers([Vendor()])
    server.add_insecure_port(f"unix://{path}")
    await server.start()
    async with channel_to(path) as channel:
        assert await channel.call("/a.B/Echo", b"request").unary() == (Status(Code.OK), b"request")
    await server.stop(0)


async def test_what_the_vendors_library_says_of_an_exception_or_a_missing_method_is_the_vendors_word(
    path: Path,
) -> None:
    def crash(_request: bytes, _context: grpc.ServicerContext) -> bytes:
        raise ValueError("disk 3 is gone")

    with vendor_at(path, Crash=crash):
        async with channel_to(path) as channel:
            crashed, _ = await channel.call("/a/Crash", b"").unary()
            missing, _ = await channel.call("/csi.v1.Controller/Imagined", b"").unary()
    assert crashed == Status(Code.UNKNOWN, "Exception calling application: disk 3 is gone")
    assert missing.code == Code.UNIMPLEMENTED


async def test_a_request_too_large_for_the_vendors_library_is_not_the_vendors_word(path: Path) -> None:
    with vendor_at(path, options=[]):
        async with channel_to(path) as channel:
            with pytest.raises(VendorConnectionError, match=r"answered RESOURCE_EXHAUSTED: .*larger than max"):
                await channel.call("/a/Echo", b"x" * (5 * MIB)).unary()
            assert await channel.call("/a/Echo", b"still up").unary() == (Status(Code.OK), b"still up")


async def test_a_request_that_the_vendors_library_cannot_read_is_not_the_vendors_word(path: Path) -> None:
    class Picky(grpc.GenericRpcHandler):
        def service(self, _details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[bytes, bytes]":
            return grpc.unary_unary_rpc_method_handler(lambda _request, _context: b"", request_deserializer=int)

    with vendor_at(path) as server:
        server.add_generic_rpc_handlers([Picky()])
        async with channel_to(path) as channel:
            with pytest.raises(VendorConnectionError, match="Exception deserializing request!"):
                await channel.call("/a/Other", b"no number").unary()


async def test_leaving_a_stream_early_cancels_it_at_the_vendor(path: Path) -> None:
    cancelled = threading.Event()

    def stream(_request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        context.add_callback(cancelled.set)
        while context.is_active():
            yield b"x"

    with vendor_at(path, Stream=stream):
        async with channel_to(path) as channel:
            call = channel.call("/a/Stream", b"")
            assert await anext(call) == b"x"
            call.cancel()
            assert await asyncio.to_thread(cancelled.wait, 20)
            with pytest.raises(VendorConnectionError, match="CSI Bridge cancelled the call"):
                await anext(call)


async def test_the_vendors_limit_of_streams_is_kept_by_waiting(path: Path) -> None:
    at_once = most = 0
    lock = threading.Lock()

    def count(request: bytes, _context: grpc.ServicerContext) -> bytes:
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
        time.sleep(0.005)
        with lock:
            at_once -= 1
        return request

    with vendor_at(path, options=[("grpc.max_concurrent_streams", 2)], Work=count):
        async with channel_to(path) as channel:
            waiting = asyncio.ensure_future(channel.call("/a/Work", b"").unary())
            calls = [asyncio.ensure_future(channel.call("/a/Work", b"%d" % each).unary()) for each in range(20)]
            await waiting
            calls[7].cancel()
            answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [each[1] for each in answers if isinstance(each, tuple)] == [b"%d" % each for each in range(20) if each != 7]
    assert most <= 2


async def test_60_internal_errors_at_once_are_believed_and_the_connection_survives_the_pings(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine 60 calls of one process, which is the driver's too, may take longer.
    monkeypatch.setattr("common.relay.client_connection.PROOF_OF_LIFE_S", 60.0)

    def refuse(_request: bytes, context: grpc.ServicerContext) -> bytes:
        context.abort(grpc.StatusCode.INTERNAL, "no")

    with vendor_at(path, Refuse=refuse):
        async with channel_to(path) as channel:
            for _ in range(5):
                answers = await asyncio.gather(*[channel.call("/a/Refuse", b"").unary() for _ in range(60)])
                assert answers == [(Status(Code.INTERNAL, "no"), None)] * 60
            assert len(channel._connections) == 1


async def test_calls_under_way_end_on_the_old_socket_while_new_ones_go_to_the_new(path: Path, tmp_path: Path) -> None:
    release, began = threading.Event(), threading.Event()

    def hold(_request: bytes, _context: grpc.ServicerContext) -> bytes:
        began.set()
        release.wait(20)
        return b"old"

    with vendor_at(path, Who=hold):
        async with channel_to(path) as channel:
            old = asyncio.ensure_future(channel.call("/a/Who", b"").unary())
            await asyncio.to_thread(began.wait, 20)
            with vendor_at(tmp_path / "new", Who=lambda _request, _context: b"new"):
                os.rename(tmp_path / "new", path)  # noqa: PTH104 - a driver takes over
                channel.check_socket()
                assert (await channel.call("/a/Who", b"").unary())[1] == b"new"
                assert len(channel._connections) == 2
                release.set()
                assert (await old)[1] == b"old"
                assert (await channel.call("/a/Who", b"").unary())[1] == b"new"
                assert len(channel._connections) == 1


async def test_a_driver_that_goes_on_after_another_took_its_socket_gets_no_more_calls(
    path: Path, tmp_path: Path
) -> None:
    with vendor_at(path, Who=lambda _request, _context: b"old"):
        async with channel_to(path) as channel:
            assert (await channel.call("/a/Who", b"").unary())[1] == b"old"
            with vendor_at(tmp_path / "new", Who=lambda _request, _context: b"new"):
                os.rename(tmp_path / "new", path)  # noqa: PTH104 - a driver takes over
                channel.check_socket()
                assert (await channel.call("/a/Who", b"").unary())[1] == b"new"


async def who(ask: Ask) -> str:
    _, name = await ask("/a/Who", b"").unary()
    return (name or b"").decode()


async def test_a_call_for_a_driver_that_another_has_replaced_is_not_sent(path: Path) -> None:
    async with channel_to(path, identify=who) as channel:
        with vendor_at(path, Who=lambda _request, _context: b"old"):
            assert (await channel.call("/a/Echo", b"1", driver="old").unary())[1] == b"1"
        await until(lambda: not channel.connected)
        sent: list[bytes] = []
        with vendor_at(
            path, Who=lambda _request, _context: b"new", Take=lambda request, _context: sent.append(request)
        ):
            with pytest.raises(
                VendorConnectionError, match=r"its socket unix://.*/vendor.sock now belongs to driver new"
            ) as error:
                await channel.call("/a/Take", b"2", driver="old").unary()
            assert not error.value.sent
            assert not sent
            assert (await channel.call("/a/Echo", b"3", driver="new").unary())[1] == b"3"
            assert (await channel.call("/a/Echo", b"4").unary())[1] == b"4"


async def test_calls_do_not_wait_for_a_driver_that_hangs_at_a_dial_once_another_has_its_socket(
    path: Path, tmp_path: Path
) -> None:
    release, began = threading.Event(), threading.Event()

    def hang(_request: bytes, _context: grpc.ServicerContext) -> bytes:
        began.set()
        release.wait(20)
        return b"old"

    with vendor_at(path, Who=hang):
        async with channel_to(path, identify=who) as channel:
            call = asyncio.ensure_future(channel.call("/a/Echo", b"1", driver="new").unary())
            await asyncio.to_thread(began.wait, 20)
            with vendor_at(tmp_path / "new", Who=lambda _request, _context: b"new"):
                os.rename(tmp_path / "new", path)  # noqa: PTH104 - a driver takes over
                channel.check_socket()
                channel.check_socket()
                async with asyncio.timeout(10):
                    assert (await call)[1] == b"1"
                release.set()


async def test_a_driver_that_changes_its_name_as_it_runs_is_asked_again(path: Path) -> None:
    names = [b"first", b"second"]
    with vendor_at(path, Who=lambda _request, _context: names.pop(0)):
        async with channel_to(path, identify=who) as channel:
            await channel.call("/a/Echo", b"", driver="first").unary()
            with pytest.raises(VendorConnectionError):
                await channel.call("/a/Echo", b"", driver="second").unary()
            await channel.call("/a/Echo", b"", driver="second").unary()


async def test_a_driver_that_does_not_say_who_it_is_gets_no_call(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("common.relay.client.NAME_TIMEOUT_S", 0.05)
    gate = threading.Event()

    def hang(_request: bytes, _context: grpc.ServicerContext) -> bytes:
        gate.wait(20)
        return b"late"

    taken: list[bytes] = []
    with vendor_at(path, Who=hang, Take=lambda request, _context: taken.append(request)):
        async with channel_to(path, identify=who) as channel:
            with pytest.raises(VendorUnreachable, match=r"it did not give its name within 0.05 s"):
                await channel.call("/a/Take", b"", driver="anyone").unary()
        gate.set()
    assert not taken


async def test_a_driver_that_refuses_to_say_who_it_is_is_an_error_in_the_asker_s_words(path: Path) -> None:
    async def nobody(ask: Ask) -> str:
        status, _ = await ask("/a/Absent", b"").unary()
        raise ValueError(f"it answers with {status.code}")

    with vendor_at(path):
        async with channel_to(path, identify=nobody) as channel:
            with pytest.raises(VendorUnreachable, match=r"it answers with 12"):
                await channel.call("/a/Echo", b"").unary()
