"""The client of Kata's shim: asks the runtime of a running sandbox about a direct volume, on its UNIX socket.

    /run/vc/sbs/<sandbox id>/shim-monitor.sock    Kata's Go runtime
    /run/kata/<sandbox id>/shim-monitor.sock      runtime-rs

One form of each request suits both runtimes:

* The target is an absolute URL: runtime-rs parses it as one.
* Stats are asked for with GET, as Kata's own clients do. runtime-rs 4.1 wants POST, and answers 404 to GET.
* The body of a resize has the keys of both runtimes. Each ignores the other's.
* The path of a device is percent-encoded once, and may contain no `%`: the Go runtime decodes it twice.

A request and its answer have a connection and one time limit, and an answer has a largest size. So a shim that hangs or
floods costs its caller one error. The event loop never waits for a shim.

Source: Kata Containers, src/runtime/pkg/containerd-shim-v2/shim_management.go and
src/runtime-rs/crates/runtimes/src/shim_mgmt/handlers.rs.
"""

import asyncio
import io
import json
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

from common.errors import BridgeError
from common.metrics import VolumeStats

GO_ROOT, RUST_ROOT = "vc/sbs", "kata"
"""The directories of running sandboxes below /run, compiled into the runtimes, in the order of Kata's own clients."""

SOCKET = "shim-monitor.sock"

LIMIT_S = 3.0
"""How long one request may take, with its answer: kata-runtime's own limit."""

LARGEST_REPLY_BYTES = 65_536
"""Ordinary ones have 200 bytes."""

_STATS = "/direct-volume/stats"
_RESIZE = "/direct-volume/resize"

_BYTES, _INODES = 1, 2
"""`VolumeUsage.Unit` of CSI. Kata writes the numbers."""

_LARGEST_COUNT = 2**63 - 1

_LONGEST_TEXT = 500
"""An error quotes this much of a shim's text."""

_NOT_DONE = ("unimplemented", "not implemented", "is not supported")
"""What an error says if the guest's agent lacks the request: the words of Kata ≥ 4.0, and those of an older agent."""


class ShimError(BridgeError):
    """A question to the runtime of a running sandbox has no good answer. It may have carried out the request."""


class Unsupported(ShimError):
    """No sandbox is known that uses the volume, or its runtime does not serve the request."""


@dataclass(frozen=True, slots=True)
class ShimClient:
    """Asks shims. It holds no connection between two requests. `run_dir` is the host's /run."""

    run_dir: Path
    limit_s: float = LIMIT_S

    def is_live(self, sandbox_id: str) -> bool:
        """Whether a sandbox runs: a shim listens on its socket. It does not block."""
        return self._socket_of([sandbox_id]) is not None

    async def stats(self, sandbox_ids: Iterable[str], device: str) -> VolumeStats:
        """Ask the first live sandbox how full a volume is. `device` is the mount info's. Raises ShimError."""
        path = self._find(sandbox_ids, device)
        target = f"{_STATS}?path={quote(device, safe='')}"
        status, body = await self._ask(path, "GET", target)
        if status in {404, 405}:
            status, body = await self._ask(path, "POST", target)
        _check(path, status, body)
        return _read_stats(path, body)

    async def resize(self, sandbox_ids: Iterable[str], device: str, size_bytes: int) -> None:
        """Ask the guest to grow a volume's file system. After Unsupported it has not; after ShimError, ask again."""
        path = self._find(sandbox_ids, device)
        asked = {"VolumePath": device, "Size": size_bytes, "volume_guest_path": device, "size": size_bytes}
        status, body = await self._ask(path, "POST", _RESIZE, json.dumps(asked).encode())
        _check(path, status, body)

    def _find(self, sandbox_ids: Iterable[str], device: str) -> Path:
        if "%" in device:
            raise Unsupported(f"the path of device {device} has a '%', which the runtime cannot be asked about")
        path = self._socket_of(sandbox_ids)
        if path is None:
            raise Unsupported(
                f"no running sandbox is known that uses device {device}: its pod has not started, or its runtime does "
                f"not record its sandboxes"
            )
        return path

    def _socket_of(self, sandbox_ids: Iterable[str]) -> Path | None:
        return next(
            (
                path
                for sandbox_id in sandbox_ids
                for root in (GO_ROOT, RUST_ROOT)
                if _is_served(path := self.run_dir / root / sandbox_id / SOCKET)
            ),
            None,
        )

    async def _ask(self, path: Path, method: str, target: str, body: bytes = b"") -> tuple[int, bytes]:
        head = [f"{method} http://shim{target} HTTP/1.1", "Host: shim", "Connection: close"]
        if method == "POST":
            head += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        request = "\r\n".join([*head, "", ""]).encode("ascii") + body
        try:
            async with asyncio.timeout(self.limit_s):
                return _parse(path, await _exchange(path, request), method)
        except TimeoutError:
            raise _gone(path, f"there is no whole answer after {self.limit_s:g} s") from None
        except OSError as error:
            raise _gone(path, error.strerror or str(error)) from error


async def _exchange(path: Path, request: bytes) -> bytes:
    reader, writer = await asyncio.open_unix_connection(str(path))
    try:
        writer.write(request)
        answer = bytearray()
        while piece := await reader.read(LARGEST_REPLY_BYTES):
            answer += piece
            if len(answer) > LARGEST_REPLY_BYTES:
                raise _unusable(path, f"it is larger than {LARGEST_REPLY_BYTES} bytes")
        return bytes(answer)
    finally:
        writer.transport.abort()


def _gone(path: Path, why: str) -> ShimError:
    return ShimError(f"the runtime at {path} gave no answer: {why}")


def _unusable(path: Path, why: str) -> ShimError:
    return ShimError(f"the answer of the runtime at {path} cannot be used: {why}")


class _Answer(io.BytesIO):
    """The bytes of an answer, in the place of the socket from which `http.client` would read them."""

    def makefile(self, _mode: str) -> "_Answer":
        return self


def _parse(path: Path, answer: bytes, method: str) -> tuple[int, bytes]:
    if not answer:
        raise _gone(path, "it closed the connection without an answer")
    if b"\r\n\r\n" not in answer:  # http.client takes a head that ends early for a whole one
        raise _unusable(path, "it is no whole answer of HTTP")
    response = HTTPResponse(cast("socket.socket", _Answer(answer)), method=method)
    try:
        response.begin()
        return response.status, response.read()
    except (HTTPException, OverflowError, ValueError) as error:
        raise _unusable(path, f"it is no whole answer of HTTP ({type(error).__name__})") from error


def _check(path: Path, status: int, body: bytes) -> None:
    if status == 200:
        return
    text = body.decode("utf-8", "replace").strip()[:_LONGEST_TEXT]
    if status in {404, 405, 501} or any(words in text.lower() for words in _NOT_DONE):
        raise Unsupported(f"the runtime at {path} does not do that: {status} {text}".strip())
    raise ShimError(f"the runtime at {path} answered with {status}: {text}")


def _read_stats(path: Path, body: bytes) -> VolumeStats:
    """Read the JSON of the Go runtime. It omits zeros."""
    if body.startswith(b"Usage: "):
        raise Unsupported(f"the runtime at {path} gives its usage in a form that only people can read")
    try:
        found = json.loads(body)
        counts = {
            usage.get("unit"): [_count(usage, key) for key in ("available", "total", "used")]
            for usage in found.get("usage") or []
        }
        abnormal, message = _condition(found.get("volume_condition"))
    except (AttributeError, RecursionError, TypeError, ValueError) as error:
        raise _unusable(path, "it is not the usage of a volume") from error
    free_bytes, capacity_bytes, used_bytes = counts.get(_BYTES, [0, 0, 0])
    inodes_free, inodes, inodes_used = counts.get(_INODES, [0, 0, 0])
    return VolumeStats(
        available_bytes=free_bytes,
        capacity_bytes=capacity_bytes,
        used_bytes=used_bytes,
        inodes_free=inodes_free,
        inodes=inodes,
        inodes_used=inodes_used,
        abnormal=abnormal,
        message=message,
    )


def _condition(found: dict[str, Any] | None) -> tuple[bool | None, str]:
    if found is None:
        return None, ""
    message = str(found.get("message", ""))
    message.encode()  # JSON can contain half a surrogate pair, which no Event can hold
    return found.get("abnormal") is True, message


def _count(usage: dict[str, Any], key: str) -> int:
    value = usage.get(key, 0)
    if type(value) is not int or not 0 <= value <= _LARGEST_COUNT:
        raise ValueError(key)
    return value


def _is_served(path: Path) -> bool:
    """Whether a process listens on a socket. A full queue counts."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(str(path))
        except BlockingIOError:
            return True
        except OSError:
            return False
        return True
