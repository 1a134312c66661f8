"""The client of Kata's shim, with shims of both flavours on real sockets."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from common.metrics import VolumeStats
from edge.direct.shim_client import GO_ROOT, RUST_ROOT, ShimClient, ShimError, Unsupported
from tests.kit.fake_shim import FakeShim, Flavour

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    with FakeShim(client.run_dir / GO_ROOT, "s") as shim:
        shim.usage = {DEVICE: USAGE}
        yield shim


@pytest.fixture
def rust(client: ShimClient) -> Iterator[FakeShim]:
    with FakeShim(client.run_dir / RUST_ROOT, "s", Flavour.RUST) as shim:
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
    with pytest.raises(Unsupported, match="the path of device /dev/a%41 has a '%'"):
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
    with pytest.raises(ShimError, match="answered with 500: mount /dev/sdg not found in sandbox"):
        await client.stats(["s"], "/dev/sdg")


async def test_the_text_of_runtime_rs_is_not_taken_for_numbers(client: ShimClient, rust: FakeShim) -> None:
    with pytest.raises(Unsupported, match="in a form that only people can read"):
        await client.stats(["s"], DEVICE)
    assert [method for method, _ in rust.asked] == ["GET", "POST"]


async def test_a_runtime_rs_that_answers_with_json_is_understood(client: ShimClient) -> None:
    with FakeShim(client.run_dir / RUST_ROOT, "s", Flavour.RUST, future=True) as shim:
        shim.usage = {"/dev/mapper/a+b&c d": USAGE}
        assert await client.stats(["s"], "/dev/mapper/a+b&c d") == STATS


@pytest.mark.parametrize("flavour", Flavour)
async def test_one_form_of_a_resize_suits_both_runtimes(client: ShimClient, flavour: Flavour) -> None:
    root = client.run_dir / GO_ROOT if flavour is Flavour.GO else client.run_dir / RUST_ROOT
    with FakeShim(root, "s", flavour) as shim:
        shim.resize_error = ""
        await client.resize(["s"], DEVICE, 2**40)
        assert shim.resizes == [(DEVICE, 2**40)]


@pytest.mark.parametrize(
    "text",
    [
        "rpc error: code = Unimplemented desc = resize_volume is not implemented in kata-agent",
        "rpc error: code = NotFound desc = /grpc.AgentService/ResizeVolume is not supported",
    ],
)
async def test_a_guest_that_cannot_grow_a_volume_is_told_apart(client: ShimClient, go: FakeShim, text: str) -> None:
    go.resize_error = text
    with pytest.raises(Unsupported, match="does not do that: 500 rpc error"):
        await client.resize(["s"], DEVICE, 2048)


async def test_runtime_rs_fails_without_a_word(client: ShimClient, rust: FakeShim) -> None:
    with pytest.raises(ShimError, match="closed the connection without an answer"):
        await client.resize(["s"], DEVICE, 2048)


BAD_ANSWERS: dict[str, tuple[bytes, type[ShimError]]] = {
    "empty": (b"", ShimError),
    "404": (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", Unsupported),
    "501": (b"HTTP/1.1 501 Not Implemented\r\n\r\n", Unsupported),
    "500": (b"HTTP/1.1 500 Internal Server Error\r\n\r\nno", ShimError),
    "302": (b"HTTP/1.1 302 Found\r\nLocation: http://elsewhere/\r\n\r\n", ShimError),
    "no body": (b"HTTP/1.1 200 OK\r\n\r\n", ShimError),
    "half a body": (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}", ShimError),
    "no chunk": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", ShimError),
    "half a head": (b"HTTP/1.1 200 OK\r\nConte", ShimError),
    "many headers": (b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 200 + b"\r\n{}", ShimError),
    "not HTTP": (b"SSH-2.0-x\r\n", ShimError),
    "10 MiB": (b"HTTP/1.1 200 OK\r\n\r\n" + b" " * (10 << 20), ShimError),
    "a list": (b"HTTP/1.1 200 OK\r\n\r\n[]", ShimError),
    "negative": (b'HTTP/1.1 200 OK\r\n\r\n{"usage":[{"total":-1,"unit":1}]}', ShimError),
    "text": (b'HTTP/1.1 200 OK\r\n\r\n{"usage":[{"total":"1","unit":1}]}', ShimError),
    "bool": (b'HTTP/1.1 200 OK\r\n\r\n{"usage":[{"total":true,"unit":1}]}', ShimError),
    "2**63": (b'HTTP/1.1 200 OK\r\n\r\n{"usage":[{"total":9223372036854775808,"unit":1}]}', ShimError),
    "no list": (b'HTTP/1.1 200 OK\r\n\r\n{"usage":7}', ShimError),
    "half a pair": (b'HTTP/1.1 200 OK\r\n\r\n{"volume_condition":{"message":"\\ud800"}}', ShimError),
    "a huge length": (b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 30 + b"\r\n\r\n{}", ShimError),
    "a huge chunk": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"F" * 30 + b"\r\n", ShimError),
    "deep": (b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 60_000, ShimError),
}


@pytest.mark.parametrize(("raw", "error"), BAD_ANSWERS.values(), ids=BAD_ANSWERS)
async def test_each_bad_answer_has_its_error(
    client: ShimClient, go: FakeShim, raw: bytes, error: type[ShimError]
) -> None:
    go.raw = raw
    with pytest.raises(error) as caught:
        await client.stats(["s"], DEVICE)
    assert caught.type is error


async def test_a_shim_that_hangs_costs_no_more_than_the_limit(client: ShimClient, go: FakeShim) -> None:
    go.hold = threading.Event()
    hasty = ShimClient(client.run_dir, limit_s=0.05)
    with pytest.raises(ShimError, match=r"there is no whole answer after 0\.05 s"):
        await hasty.stats(["s"], DEVICE)


async def test_the_sandbox_that_lives_is_asked(client: ShimClient, go: FakeShim) -> None:
    with FakeShim(client.run_dir / GO_ROOT, "dead"):
        pass
    (client.run_dir / GO_ROOT / "gone").mkdir()
    assert [client.is_live(sandbox_id) for sandbox_id in ("dead", "gone", "never", "s")] == [False, False, False, True]
    assert await client.stats(["dead", "gone", "never", "s"], DEVICE) == STATS


@pytest.mark.parametrize("ids", [[], ["dead"], ["x" * 200]])
async def test_without_a_live_sandbox_nobody_is_asked(client: ShimClient, ids: list[str]) -> None:
    with FakeShim(client.run_dir / GO_ROOT, "dead"):
        pass
    with pytest.raises(Unsupported, match="no running sandbox is known that uses device /dev/sdf"):
        await client.stats(ids, DEVICE)
    with pytest.raises(Unsupported):
        await client.resize(ids, DEVICE, 1)


async def test_a_thousand_requests_good_and_bad_leave_no_descriptor_open(client: ShimClient, go: FakeShim) -> None:
    async def ask_each_way() -> None:
        for raw in (None, b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}", b"HTTP/1.1 500 x\r\n\r\n"):
            go.raw = raw
            try:
                await client.stats(["s"], DEVICE)
            except ShimError:
                assert raw is not None

    await ask_each_way()
    before = descriptors()
    for _ in range(250):
        await ask_each_way()
    assert descriptors() <= before + 2  # the fake shim's threads close theirs in their own time


def descriptors() -> int:
    """The number of descriptors that this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))
