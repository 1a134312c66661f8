"""The client of Kata's shim: asks the runtime of a running sandbox how full a direct volume is, on its UNIX socket.

    /run/vc/sbs/<sandbox id>/shim-monitor.sock

Only Kata's Go runtime is asked: runtime-rs does not record its sandboxes with a volume (`edge.direct.store`). The path
of a device is percent-encoded once, and may contain no `%`: the runtime decodes it twice.

A request and its answer have a connection and one time limit, and an answer has a largest size. So a shim that hangs or
floods costs its caller one error. The event loop never waits for a shim.

Source: Kata Containers, src/runtime/pkg/containerd-shim-v2/shim_management.go.
"""

import asyncio
import io
import json
from collections.abc import Iterable
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

from common.errors import BridgeError
from common.net.sockets import is_served
from common.observe.metrics import VolumeStats

SANDBOXES = "vc/sbs"  # the directory of running sandboxes below /run, compiled into the runtime

SOCKET = "shim-monitor.sock"

LIMIT_S = 3.0  # how long one request may take, with its answer: kata-runtime's own limit

LARGEST_REPLY_BYTES = 65_536  # ordinary ones have 200 bytes

# `VolumeUsage.Unit` of CSI. Kata writes the numbers.
_BYTES = 1
_INODES = 2

_LARGEST_COUNT = 2**63 - 1

_LONGEST_TEXT = 500  # an error quotes this much of a shim's text


@dataclass(frozen=True, slots=True)
class ShimClient:
    """Asks shims. It holds no connection between two requests. `run_dir` is the host's /run."""

    run_dir: Path
    limit_s: float = LIMIT_S

    def is_live(self, sandbox_id: str) -> bool:
        """Whether a sandbox runs: a shim listens on its socket. It does not block."""
        return is_served(self._socket_of(sandbox_id))

    async def stats(self, sandbox_ids: Iterable[str], device: str) -> VolumeStats:
        """Ask the first live sandbox how full a volume is. `device` is the mount info's.

        Raises BridgeError: no sandbox is known that uses the volume, or its runtime has no good answer.
        """
        if "%" in device:
            raise BridgeError(f"the path of device {device} has a '%', which the runtime cannot be asked about")
        path = next((self._socket_of(sandbox_id) for sandbox_id in sandbox_ids if self.is_live(sandbox_id)), None)
        if path is None:
            raise BridgeError(
                f"no running sandbox is known that uses device {device}: its pod has not started, or its runtime does "
                f"not record its sandboxes"
            )
        target = f"http://shim/direct-volume/stats?path={quote(device, safe='')}"
        request = f"GET {target} HTTP/1.1\r\nHost: shim\r\nConnection: close\r\n\r\n"
        try:
            async with asyncio.timeout(self.limit_s):
                status, body = _parse(path, await _exchange(path, request.encode("ascii")))
        except TimeoutError:
            raise _gone(path, f"there is no whole answer after {self.limit_s:g} s") from None
        except OSError as error:
            raise _gone(path, error.strerror or str(error)) from error
        if status != 200:
            text = body.decode("utf-8", "replace").strip()[:_LONGEST_TEXT]
            raise BridgeError(f"the runtime at {path} answered with {status}: {text}")
        return _read_stats(path, body)

    def _socket_of(self, sandbox_id: str) -> Path:
        return self.run_dir / SANDBOXES / sandbox_id / SOCKET


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


def _gone(path: Path, why: str) -> BridgeError:
    return BridgeError(f"the runtime at {path} gave no answer: {why}")


def _unusable(path: Path, why: str) -> BridgeError:
    return BridgeError(f"the answer of the runtime at {path} cannot be used: {why}")


class _Answer(io.BytesIO):
    """The bytes of an answer, in the place of the socket from which `http.client` would read them."""

    def makefile(self, _mode: str) -> "_Answer":
        return self


def _parse(path: Path, answer: bytes) -> tuple[int, bytes]:
    if not answer:
        raise _gone(path, "it closed the connection without an answer")
    if b"\r\n\r\n" not in answer:  # http.client takes a head that ends early for a whole one
        raise _unusable(path, "it is no whole answer of HTTP")
    response = HTTPResponse(cast("Any", _Answer(answer)), method="GET")
    try:
        response.begin()
        return response.status, response.read()
    except (HTTPException, OverflowError, ValueError) as error:
        raise _unusable(path, f"it is no whole answer of HTTP ({type(error).__name__})") from error


def _read_stats(path: Path, body: bytes) -> VolumeStats:
    # The runtime omits zeros.
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
