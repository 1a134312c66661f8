"""The lab's own link: it must do to a connection what it says, or no test that uses it proves anything."""

import asyncio
import contextlib
import json
import socket
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.lab.link import Link
from tests.lab.remote import SCRIPT, RemoteLink, rate

NEVER_S = 0.2
"""How long a test waits for what must not come. What must come has the test's own limit."""


class Peer:
    """One end of a connection through the link."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def ask(self, question: bytes) -> bytes:
        self.writer.write(question)
        return await self.reader.readexactly(len(question))

    async def hears_nothing(self) -> bool:
        try:
            await asyncio.wait_for(self.reader.read(1), NEVER_S)
        except TimeoutError:
            return True
        return False

    async def is_reset(self) -> bool:
        with contextlib.suppress(ConnectionResetError):
            return await self.reader.read(1) == b""
        return True


class Echo:
    """A server that answers with what it is told, and the peers that dialled it through links."""

    def __init__(self) -> None:
        self.address = ""
        self.served: list[asyncio.StreamWriter] = []
        self.dialled: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.served.append(writer)
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def dial(self, address: str) -> Peer:
        if address.startswith("unix://"):
            reader, writer = await asyncio.open_unix_connection(address.removeprefix("unix://"))
        else:
            host, _, port = address.rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
        self.dialled.append(writer)
        return Peer(reader, writer)

    def leave(self) -> None:
        for writer in self.served:
            writer.close()

    async def close(self) -> None:
        writers = [*self.served, *self.dialled]
        for writer in writers:
            writer.close()
        for writer in writers:
            with contextlib.suppress(OSError):
                await writer.wait_closed()


@pytest.fixture
async def echo() -> AsyncIterator[Echo]:
    echo = Echo()
    server = await asyncio.start_server(echo.serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    echo.address = f"{host}:{port}"
    yield echo
    await echo.close()
    server.close()
    await server.wait_closed()


async def test_bytes_go_both_ways_and_are_counted(echo: Echo) -> None:
    async with Link(to=echo.address) as link:
        peer = await echo.dial(link.address)
        assert await peer.ask(b"x" * 1_000_000) == b"x" * 1_000_000
        assert (link.stats.accepted, link.stats.open) == (1, 1)
        assert (link.stats.bytes_up, link.stats.bytes_down) == (1_000_000, 1_000_000)


async def test_the_end_of_one_direction_passes_and_the_other_goes_on(echo: Echo) -> None:
    async with Link(to=echo.address, delay_s=0.01) as link:
        peer = await echo.dial(link.address)
        peer.writer.write(b"last words")
        peer.writer.write_eof()
        assert await peer.reader.read() == b"last words"


async def test_a_delay_is_paid_each_way(echo: Echo) -> None:
    async with Link(to=echo.address, delay_s=0.05) as link:
        peer = await echo.dial(link.address)
        began = time.monotonic()
        await peer.ask(b"ping")
        assert time.monotonic() - began >= 0.1


async def test_a_delay_is_no_rate_many_questions_share_it(echo: Echo) -> None:
    async with Link(to=echo.address, delay_s=0.3) as link:
        peer = await echo.dial(link.address)
        began = time.monotonic()
        await peer.ask(b"x" * 2_000_000)
        assert time.monotonic() - began >= 0.6
        assert link.stats.round_trips == 1


async def test_round_trips_are_counted_by_cause(echo: Echo) -> None:
    async with Link(to=echo.address, delay_s=0.02) as link:
        peer = await echo.dial(link.address)
        for _ in range(5):
            await peer.ask(b"q" * 100_000)
        assert link.stats.round_trips == 5


async def test_questions_that_do_not_wait_for_each_other_are_one_round_trip(echo: Echo) -> None:
    async with Link(to=echo.address, delay_s=0.3) as link:
        peer = await echo.dial(link.address)
        for _ in range(5):
            peer.writer.write(b"q")
            await asyncio.sleep(0.001)
        await peer.reader.readexactly(5)
        assert (link.stats.turns, link.stats.round_trips) == (2, 1)


async def test_a_rate_is_kept(echo: Echo) -> None:
    async with Link(to=echo.address, rate_bits_s=1_000_000) as link:
        peer = await echo.dial(link.address)
        began = time.monotonic()
        await peer.ask(b"x" * 50_000)
        assert time.monotonic() - began >= 0.4


async def test_on_a_slow_line_the_sender_feels_it(echo: Echo) -> None:
    async with Link(to=echo.address, rate_bits_s=8_000, buffer_bytes=4096) as link:
        host, port = link.address.split(":")
        with socket.create_connection((host, int(port))) as sender:
            sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            sender.setblocking(False)
            taken = 0
            with contextlib.suppress(BlockingIOError):
                while taken < 1_000_000:
                    taken += sender.send(b"x" * 1000)
                    await asyncio.sleep(0)
            assert taken < 100_000
        assert link.stats.bytes_up < 20_000


async def test_a_sink_that_does_not_read_is_felt_by_the_sender_too() -> None:
    async def never_read(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await left.wait()
        writer.transport.abort()

    left = asyncio.Event()
    server = await asyncio.start_server(never_read, "127.0.0.1", 0, limit=1)
    host, port = server.sockets[0].getsockname()
    async with Link(to=f"{host}:{port}") as link:
        address = link.address.split(":")
        _, writer = await asyncio.open_connection(address[0], int(address[1]))
        writer.write(b"x" * 100_000_000)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(writer.drain(), 1)
        assert link.stats.bytes_up < 50_000_000
        left.set()
        writer.transport.abort()
    server.close()
    await server.wait_closed()


async def test_a_stall_is_silent_and_heals_without_loss(echo: Echo) -> None:
    async with Link(to=echo.address) as link:
        peer = await echo.dial(link.address)
        await peer.ask(b"before")
        link.stall()
        peer.writer.write(b"q")
        assert await peer.hears_nothing()
        link.heal()
        assert await peer.reader.readexactly(1) == b"q"


async def test_a_stall_of_one_way_lets_the_other_pass(echo: Echo) -> None:
    async with Link(to=echo.address) as link:
        peer = await echo.dial(link.address)
        await peer.ask(b"before")
        link.stall("down")
        peer.writer.write(b"q")
        while link.stats.bytes_up < 7:
            assert await peer.hears_nothing()
        link.heal()
        assert await peer.reader.readexactly(1) == b"q"


async def test_while_stalled_a_new_connection_is_accepted_and_nothing_more(echo: Echo) -> None:
    async with Link(to=echo.address) as link:
        link.stall()
        peer = await echo.dial(link.address)
        peer.writer.write(b"q")
        assert await peer.hears_nothing()
        link.heal()
        assert await peer.reader.readexactly(1) == b"q"


async def test_a_stalled_link_does_not_tell_that_the_other_end_left(echo: Echo) -> None:
    async with Link(to=echo.address) as link:
        peer = await echo.dial(link.address)
        await peer.ask(b"before")
        link.stall()
        echo.leave()
        assert await peer.hears_nothing()
        link.heal()
        assert await peer.reader.read() == b""


async def test_a_cut_resets_every_connection_and_refuses_new_ones_until_healed(echo: Echo) -> None:
    async with Link(to=echo.address) as link:
        peers = [await echo.dial(link.address) for _ in range(3)]
        for peer in peers:
            await peer.ask(b"before")
        await link.cut()
        assert [await peer.is_reset() for peer in peers] == [True, True, True]
        with pytest.raises(ConnectionRefusedError):
            await echo.dial(link.address)
        assert link.stats.open == 0
        link.heal()
        assert await (await echo.dial(link.address)).ask(b"again") == b"again"


async def test_a_cut_can_hold_new_connections_until_healed(echo: Echo) -> None:
    async with Link(to=echo.address) as link:
        old = await echo.dial(link.address)
        await old.ask(b"before")
        await link.cut("hold")
        assert await old.is_reset()
        held = await echo.dial(link.address)
        held.writer.write(b"q")
        assert await held.hears_nothing()
        link.heal()
        assert await held.reader.readexactly(1) == b"q"


async def test_a_rebind_silences_the_old_connections_for_ever_and_lets_new_ones_through(echo: Echo) -> None:
    async with Link(to=echo.address) as link:
        old = await echo.dial(link.address)
        await old.ask(b"before")
        link.rebind()
        old.writer.write(b"q")
        assert await (await echo.dial(link.address)).ask(b"new") == b"new"
        link.heal()
        assert await old.hears_nothing()


async def test_a_target_that_refuses_is_a_reset(echo: Echo) -> None:
    with socket.socket() as bound:  # and never listening
        bound.bind(("127.0.0.1", 0))
        host, port = bound.getsockname()
        async with Link(to=f"{host}:{port}") as link:
            assert await (await echo.dial(link.address)).is_reset()


async def test_it_relays_unix_sockets(tmp_path: Path) -> None:
    echo = Echo()
    target, listen = tmp_path / "target.sock", f"unix://{tmp_path}/link.sock"
    async with await asyncio.start_unix_server(echo.serve, target), Link(to=f"unix://{target}", listen=listen) as link:
        peer = await echo.dial(link.address)
        assert await peer.ask(b"hello") == b"hello"
        await link.cut()
        assert await peer.is_reset()
        with pytest.raises(OSError, match=r"refused|No such file"):
            await echo.dial(link.address)
        link.heal()
        assert await (await echo.dial(link.address)).ask(b"again") == b"again"
        await echo.close()
    assert not (tmp_path / "link.sock").exists()


async def test_leaving_it_leaves_nothing_behind(echo: Echo) -> None:
    before = len(asyncio.all_tasks())
    async with Link(to=echo.address) as link:
        peer = await echo.dial(link.address)
        await peer.ask(b"hello")
        waiting = await echo.dial(link.address)
    assert await peer.is_reset()
    assert await waiting.is_reset()
    await echo.close()
    while len(asyncio.all_tasks()) > before:  # noqa: ASYNC110  # the echo server's own tasks end
        await asyncio.sleep(0)


async def test_it_runs_in_a_process_of_its_own_and_takes_commands(echo: Echo) -> None:
    link = await asyncio.to_thread(RemoteLink, to=echo.address, delay="1ms")
    try:
        peer = await echo.dial(link.address)
        await peer.ask(b"hello")
        stats = await asyncio.to_thread(link.command, "stats")
        assert (stats["bytes_up"], stats["round_trips"]) == (5, 1)
        await asyncio.to_thread(link.command, "cut")
        assert await peer.is_reset()
        with pytest.raises(ValueError, match="unknown command: explode"):
            await asyncio.to_thread(link.command, "explode")
    finally:
        await asyncio.to_thread(link.close)


async def test_it_takes_commands_over_a_unix_socket(echo: Echo, tmp_path: Path) -> None:
    control = tmp_path / "control.sock"
    arguments = [str(SCRIPT), "--to", echo.address, "--control", f"unix://{control}"]
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        address = json.loads(await process.stdout.readline())["address"]
        reader, writer = await asyncio.open_unix_connection(control)
        writer.write(b"delay 10ms\n")
        assert json.loads(await reader.readline())["address"] == address
        writer.close()
        assert await (await echo.dial(address)).ask(b"hello") == b"hello"
    finally:
        process.terminate()
        await process.communicate()


@pytest.mark.parametrize(
    ("text", "bits_s"), [("64kbit", 64_000), ("1.5Mbit", 1_500_000), ("9600bit", 9600), ("none", None)]
)
def test_a_rate_is_written_with_its_unit(text: str, bits_s: float | None) -> None:
    assert rate(text) == bits_s
