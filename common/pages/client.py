"""A client of pages: asks a hub or an agent for one page, over HTTP on its UNIX socket. It blocks."""

import http.client
import json
import socket
import time
from http import HTTPStatus
from pathlib import Path
from typing import TypeVar

from common.pages.json_form import decode

T = TypeVar("T")

_CHUNK_BYTES = 65_536

_CUT = "the connection ended before the whole answer"

_WHY_CHARS = 200  # a server says why in one sentence


class NoSuchPage(Exception):
    """The server has no such page, or is none of ours. `status` is its HTTP status."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


def ask_page(sock: Path, path: str, page: type[T], *, timeout_s: float) -> T:
    """Ask for a page, which is a dataclass or a list of one.

    Raises NoSuchPage: the server answered with an error; OSError: nobody answers there, or not the whole page;
    TimeoutError: not in time; ValueError: the answer is not that page.
    """
    give_up = time.monotonic() + timeout_s
    connection = _UnixConnection(sock, timeout_s)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        body = bytearray()
        while data := answer.read1(_CHUNK_BYTES):
            body += data
            if time.monotonic() > give_up:
                raise TimeoutError(f"no whole answer within {timeout_s:g} s")
        if answer.length:
            raise ConnectionError(_CUT)
        if answer.status != HTTPStatus.OK:
            raise NoSuchPage(answer.status, _why(answer.status, bytes(body)))
    except (http.client.IncompleteRead, http.client.RemoteDisconnected) as error:
        raise ConnectionError(_CUT) from error
    except http.client.HTTPException as error:
        raise ValueError(str(error) or type(error).__name__) from error
    finally:
        connection.close()
    return decode(bytes(body), page)


def _why(status: int, body: bytes) -> str:
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace")[:_WHY_CHARS].strip() or f"HTTP {status}"


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))
