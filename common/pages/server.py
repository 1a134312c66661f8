"""A server of pages: answers `GET` with JSON over HTTP, on UNIX sockets alone.

Rules:

* Making pages takes a fifth of the process's time at most, however many clients ask: at a boot, every unit that waits
  for its pod's volumes asks five times a second. A page that took long to make is given again for four times as long.
* A list may be long: it is made and sent in slices. A pause follows its beginning and each slice, four times as long as
  that took.
* A client that does not read gets no more after some seconds. Clients beyond `_MOST_CLIENTS` are sent away.
"""

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from functools import partial
from http import HTTPStatus
from itertools import islice
from typing import Any
from urllib.parse import unquote

from common.pages.json_form import encode

log = logging.getLogger("csi_bridge.pages")

_CLIENT_S = 5.0  # a client that does not finish its request in this time, or takes no more of the answer, is let go
_SHARE = 4  # pauses are so many times as long as the work between them
_SLICE = 100  # entries of a list in one slice: some milliseconds of the loop's time
_MOST_CLIENTS = 64  # Clients at one time. Each holds a file descriptor, and one slice or one page.
_BACKLOG = 1_024  # connections that the kernel queues while the process is busy
Document = Callable[[], Any]  # makes a page that is one object: a dataclass
Listing = Callable[[], Awaitable[Iterable[Any]]]  # makes a page that is a list of dataclasses, one entry after another
ListingOf = Callable[[str], Awaitable[Iterable[Any]]]  # makes such a page about one thing, by its name


class Pages:
    """The pages of one process. They hold no secret."""

    def __init__(
        self,
        documents: Mapping[str, Document],
        listings: Mapping[str, Listing] | None = None,
        *,
        of_one: Mapping[str, ListingOf] | None = None,
        why_no_more: Callable[[], str] | None = None,
    ) -> None:
        """Serve these pages, by path; those of `of_one` by the path before the name: `/facts` of `/facts/NODE`.

        `why_no_more` says why there are no others for now; None: there are none at all.
        """
        self._documents = documents
        self._listings = listings or {}
        self._of_one = of_one or {}
        self._why_no_more = why_no_more
        self._kept: dict[str, tuple[float, bytes]] = {}  # by path: until when an answer is given again
        self._making = asyncio.Lock()
        self._clients = 0

    async def listen(self, sock: socket.socket) -> asyncio.Server:
        return await asyncio.start_unix_server(self.serve, sock=sock, backlog=_BACKLOG)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = await _requested(reader)
        if path is None:
            writer.transport.abort()
        else:
            await self.answer(path, writer)

    async def answer(self, path: str, writer: asyncio.StreamWriter) -> None:
        self._clients += 1
        try:
            writer.transport.set_write_buffer_limits(0)  # what is drained has left
            with contextlib.suppress(OSError, TimeoutError):  # gone, or too slow
                await self._answer(path, writer)
        except Exception:
            log.exception("the page %s failed", path)
        finally:
            self._clients -= 1
            writer.transport.abort()  # closing would wait for who does not read, for ever

    async def _answer(self, path: str, writer: asyncio.StreamWriter) -> None:
        if self._clients > _MOST_CLIENTS:
            why = {"error": f"{_MOST_CLIENTS} clients are being answered already"}
            await _send(writer, _whole(HTTPStatus.SERVICE_UNAVAILABLE, encode(why)))
        elif path in self._documents:
            await _send(writer, _whole(HTTPStatus.OK, self._document(path)))
        elif (listing := self._listing(path)) is not None:
            await self._send_list(writer, listing)
        elif self._why_no_more is not None:
            await _send(writer, _whole(HTTPStatus.SERVICE_UNAVAILABLE, encode({"error": self._why_no_more()})))
        else:
            paths = " and ".join([*self._documents, *self._listings])
            await _send(writer, _whole(HTTPStatus.NOT_FOUND, encode({"error": f"only GET of {paths} is served"})))

    def _listing(self, path: str) -> Listing | None:
        above, _, name = path.rpartition("/")
        if name and above in self._of_one:
            return partial(self._of_one[above], unquote(name))
        return self._listings.get(path)

    def _document(self, path: str) -> bytes:
        begun = time.monotonic()
        until, body = self._kept.get(path, (begun, b""))
        if begun >= until:
            body = encode(self._documents[path](), indent=2)
            ended = time.monotonic()
            self._kept[path] = ended + _SHARE * (ended - begun), body
        return body

    async def _send_list(self, writer: asyncio.StreamWriter, listing: Listing) -> None:
        # A chunked answer (RFC 9112, 7.1): a reader sees by its end that it is whole.
        async with self._paced():
            entries = iter(await listing())
        await _send(writer, _head(HTTPStatus.OK, "Transfer-Encoding: chunked"))
        before = b"["
        while True:
            async with self._paced():
                some = [encode(entry) for entry in islice(entries, _SLICE)]
            if not some:
                break
            await _send(writer, _chunk(before + b",\n".join(some)))
            before = b",\n"
        end = b"]\n" if before == b",\n" else b"[]\n"
        await _send(writer, _chunk(end) + _chunk(b""))

    @contextlib.asynccontextmanager
    async def _paced(self) -> AsyncIterator[None]:
        async with self._making:
            begun = time.thread_time()  # on a busy machine a part takes longer than it works
            yield
            await asyncio.sleep(_SHARE * (time.thread_time() - begun))


async def _requested(reader: asyncio.StreamReader) -> str | None:
    # Empty for another method than GET; None if the client is gone or slow, or its lines too long.
    try:
        async with asyncio.timeout(_CLIENT_S):
            request = await reader.readline()
            while (await reader.readline()).strip():
                pass
    except (OSError, ValueError, TimeoutError):
        return None
    if not request:
        return None
    method, _, rest = request.partition(b" ")
    return rest.split(b" ")[0].decode(errors="replace") if method == b"GET" else ""


async def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    async with asyncio.timeout(_CLIENT_S):
        await writer.drain()


def _whole(status: HTTPStatus, body: bytes) -> bytes:
    return _head(status, f"Content-Length: {len(body) + 1}") + body + b"\n"


def _head(status: HTTPStatus, length: str) -> bytes:
    head = f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: application/json\r\n{length}\r\n"
    return f"{head}Connection: close\r\n\r\n".encode()


def _chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"
