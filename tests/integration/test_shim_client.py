"""The client of Kata's shim, with shims on real sockets."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from common.errors import BridgeError
from common.observe.metrics import VolumeStats
from edge.direct.shim_client import SANDBOXES, ShimClient
from tests.kit.fake_shim import FakeShim

DEVICE = "/dev/sdf"
USAGE = {
    "usage": [{"available": 900, "total": 1000, "used": 100, "unit": 1}, {"available": 65, "total": 65, "unit": 2}],
    "volume_condition": {"message": "OK"},
}
STATS = VolumeStats(
    available_bytes=900,
    capacity_bytes=1000,
    used_bytes=100,
    inodes_free=65,
    inodes=65,
    inodes_used=0,
    abnormal=False,
    message="OK",
)


@pytest.fixture
def client(short_dir: Path) -> ShimClient:
    return ShimClient(short_dir)


@pytest.fixture
def go(client: ShimClient) -> Iterator[FakeShim]:
    with FakeShim(client.run_dir / SANDBOXES, "s") as shim:
        shim.usage = {DEVICE: USAGE}
        yield shim


async def test_the_go_runtime_tells_usage_and_condition_and_omits_zeros(client: ShimClient, go: FakeShim) -> None:
    assert await client.stats(["s"], DEVICE) == STATS
    assert go.asked == [("GET", "http://shim/direct-volume/stats?path=%2Fdev%2Fsdf")]


@pytest.mark.parametrize("device", ["/dev/mapper/a+b&c d", "/dev/disk/é?#=;/x"])
async def test_a_devices_path_arrives_whole(client: ShimClient, go: FakeShim, device: str) -> None:
    go.usage = {device: USAGE}
    assert await client.stats(["s"], device) == STATS


async def test_a_device_that_the_runtime_cannot_be_asked_about_is_not_asked_about(
    client: ShimClient, go: FakeShim
) -> None:
    with pytest.raises(BridgeError, match="the path of device /dev/a%41 has a '%'"):
        await client.stats(["s"], "/dev/a%41")
    assert go.asked == []


@pytest.mark.parametrize(
    ("usage", "stats"),
    [
        (
            {"usage": [], "volume_condition": {"abnormal": True, "message": "I/O error"}},
            VolumeStats(abnormal=True, message="I/O error"),
        ),
        ({"usage": [{"total": 7, "unit": 1}, {"total": 9}]}, VolumeStats(capacity_bytes=7)),
    ],
    ids=["abnormal", "missing"],
)
async def test_an_abnormal_condition_is_told_and_a_missing_one_says_nothing_about_health(
    client: ShimClient, go: FakeShim, usage: dict[str, Any], stats: VolumeStats
) -> None:
    go.usage = {DEVICE: usage}
    assert await client.stats(["s"], DEVICE) == stats
    with pytest.raises(BridgeError, match="answered with 500: mount /dev/sdg not found in sandbox"):
        await client.stats(["s"], "/dev/sdg")


BAD_ANSWERS = {
    "empty": b"",
    "404": b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
    "501": b"HTTP/1.1 501 Not Implemented\r\n\r\n",
    "500": b"HTTP/1.1 500 Internal Server Error\r\n\r\nno",
    "302": b"HTTP/1.1 302 Found\r\nLocation: http://elsewhere/\r\n\r\n",
    "no body": b"HTTP/1.1 200 OK\r\n\r\n",
    "half a body": b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}",
    "no chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "half a head": b"HTTP/1.1 200 OK\r\nConte",
    "many headers": b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 200 + b"\r\n{}",
    "not HTTP": b"SSH-2.0-x\r\n",
    "10 MiB": b"HTTP/1.1 200 OK\r\n\r\n" + b" " * (10 << 20),
    "a list": b"HTTP/1.1 200 OK\r\n\r\n[]",
    "negative": b'HTTP/1.1 200 OK\r\n\r\n{"usage":[{"total":-1,"unit":1}]}',
    "text": b'HTTP/1.1 200 OK\r\n\r\n{"usage":[{"total":"1","unit":1}]}',
    "bool": b'HTTP/1.1 200 OK\r\n\r\n{"usage":[{"total":true,"unit":1}]}',
    "2**63": b'HTTP/1.1 200 OK\r\n\r\n{"usage":[{"total":9223372036854775808,"unit":1}]}',
    "no list": b'HTTP/1.1 200 OK\r\n\r\n{"usage":7}',
    "half a pair": b'HTTP/1.1 200 OK\r\n\r\n{"volume_condition":{"message":"\\ud800"}}',
    "a huge length": b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 30 + b"\r\n\r\n{}",
    "a huge chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"F" * 30 + b"\r\n",
    "deep": b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 60_000,
}


@pytest.mark.parametrize("raw", BAD_ANSWERS.values(), ids=BAD_ANSWERS)
async def test_each_bad_answer_is_an_error(client: ShimClient, go: FakeShim, raw: bytes) -> None:
    go.raw = raw
    with pytest.raises(BridgeError, match="the runtime at"):
        await client.stats(["s"], DEVICE)


async def test_a_shim_that_hangs_costs_no_more_than_the_limit(client: ShimClient, go: FakeShim) -> None:
    go.hold = threading.Event()
    hasty = ShimClient(client.run_dir, limit_s=0.05)
    with pytest.raises(BridgeError, match=r"there is no whole answer after 0\.05 s"):
        await hasty.stats(["s"], DEVICE)


async def test_the_sandbox_that_lives_is_asked(client: ShimClient, go: FakeShim) -> None:
    with FakeShim(client.run_dir / SANDBOXES, "dead"):
        pass
    (client.run_dir / SANDBOXES / "gone").mkdir()
    assert [client.is_live(sandbox_id) for sandbox_id in ("dead", "gone", "never", "s")] == [False, False, False, True]
    assert await client.stats(["dead", "gone", "never", "s"], DEVICE) == STATS


@pytest.mark.parametrize("ids", [[], ["dead"], ["x" * 200]])
async def test_without_a_live_sandbox_nobody_is_asked(client: ShimClient, ids: list[str]) -> None:
    with FakeShim(client.run_dir / SANDBOXES, "dead"):
        pass
    with pytest.raises(BridgeError, match="no running sandbox is known that uses device /dev/sdf"):
        await client.stats(ids, DEVICE)


async def test_two_hundred_requests_good_and_bad_leave_no_descriptor_open(client: ShimClient, go: FakeShim) -> None:
    async def ask_each_way() -> None:
        for raw in (None, b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}", b"HTTP/1.1 500 x\r\n\r\n"):
            go.raw = raw
            try:
                await client.stats(["s"], DEVICE)
            except BridgeError:
                assert raw is not None

    await ask_each_way()
    before = descriptors()
    for _ in range(50):
        await ask_each_way()
    assert descriptors() <= before + 2  # the fake shim's threads close theirs in their own time


def descriptors() -> int:
    """The number of descriptors that this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))
