"""Streams and large messages: whole or visibly broken, and never in the way of other calls."""

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.csi import csi_pb2
from common.status import Code
from tests.integration.conftest import Routed
from tests.kit.answers import volume
from tests.kit.bridge import Bridge
from tests.kit.certificates import Authority
from tests.kit.forms import in_each_form, slow_in_hub
from tests.kit.requests import create, create_of_bytes
from tests.kit.sidecar import unavailable
from tests.kit.vendor import Refusal, Vendor, VendorCall
from tests.kit.waiting import wait_for

MIB = 1 << 20

_RANGES = 200_000
_RANGES_PER_MESSAGE = 1_000
_BLOCK_BYTES = 4_096

_BIG_MESSAGE_BYTES = 250_000
_BIG_MESSAGES = 400


def _messages() -> Iterator[csi_pb2.GetMetadataAllocatedResponse]:
    for first in range(0, _RANGES, _RANGES_PER_MESSAGE):
        numbers = range(first, first + _RANGES_PER_MESSAGE)
        yield csi_pb2.GetMetadataAllocatedResponse(
            block_metadata_type="FIXED_LENGTH",
            block_metadata=[
                csi_pb2.BlockMetadata(byte_offset=number * _BLOCK_BYTES, size_bytes=_BLOCK_BYTES) for number in numbers
            ],
        )


def _big(_call: VendorCall) -> Iterator[bytes]:
    """100 MB."""
    yield from itertools.repeat(_big_message(), _BIG_MESSAGES)


def _big_message() -> bytes:
    """A message of one unknown, very long field."""
    message = csi_pb2.GetMetadataAllocatedResponse(volume_capacity_bytes=1).SerializeToString()
    return message + b"\x7a" + _varint(_BIG_MESSAGE_BYTES) + bytes(_BIG_MESSAGE_BYTES)  # field 15, length-delimited


def _varint(number: int) -> bytes:
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


# -------------------- streams --------------------


@slow_in_hub
def test_two_hundred_thousand_ranges_arrive_whole_and_in_order(shared: Routed) -> None:
    shared.vendor.on("GetMetadataAllocated", lambda _: _messages())
    request = csi_pb2.GetMetadataAllocatedRequest(snapshot_id="s", max_results=_RANGES)
    stream = shared.sidecar.stream("GetMetadataAllocated", request)
    offsets = [block.byte_offset for message in stream for block in message.block_metadata]
    assert offsets == [number * _BLOCK_BYTES for number in range(_RANGES)]
    assert stream.outcome().refusal == (Code.OK, "")
    assert shared.vendor.calls("GetMetadataAllocated")[-1].request == request


@slow_in_hub
def test_a_stream_of_nothing_ends_cleanly(shared: Routed) -> None:
    shared.vendor.on("GetMetadataDelta", lambda _: iter(()))
    outcome = shared.sidecar.stream("GetMetadataDelta").outcome()
    assert (outcome.refusal, outcome.count) == ((Code.OK, ""), 0)


@slow_in_hub
def test_a_vendors_refusal_after_some_messages_passes_unchanged(shared: Routed) -> None:
    def script(_call: VendorCall) -> Iterator[csi_pb2.GetMetadataAllocatedResponse]:
        yield csi_pb2.GetMetadataAllocatedResponse(volume_capacity_bytes=1)
        raise Refusal(Code.OUT_OF_RANGE, "starting_offset is behind the end")

    shared.vendor.on("GetMetadataAllocated", script)
    outcome = shared.sidecar.stream("GetMetadataAllocated").outcome()
    assert outcome.refusal == (Code.OUT_OF_RANGE, "starting_offset is behind the end")
    assert outcome.count == 1


@slow_in_hub
def test_a_call_beside_a_stream_of_100_mb_ends_before_the_stream(shared: Routed, name: str) -> None:
    answered = shared.vendor.gate()

    def script(call: VendorCall) -> Iterator[bytes]:
        yield from _big(call)
        while not answered.is_set():  # full speed on: only a call that does not wait for the end can be answered
            yield _big_message()

    shared.vendor.on("GetMetadataAllocated", script)
    stream = shared.sidecar.stream("GetMetadataAllocated")
    received: list[int] = []
    reader = threading.Thread(target=lambda: received.extend(len(m.SerializeToString()) for m in stream))
    reader.start()
    wait_for(lambda: len(received) > 0, what="first message of the stream")
    outcome = shared.sidecar.call("CreateVolume", create(name), timeout_s=10.0)
    answered.set()
    reader.join()
    assert outcome.answer == volume(name)
    assert stream.outcome().refusal == (Code.OK, "")
    assert sum(received) > 100_000_000


@slow_in_hub
def test_a_stream_that_nobody_reads_is_in_nobodys_way(shared: Routed, name: str) -> None:
    shared.vendor.on("GetMetadataAllocated", _big)
    streams = [shared.sidecar.stream("GetMetadataAllocated") for _ in range(4)]
    for stream in streams:
        next(stream)
    for number in range(20):
        assert shared.sidecar.call("CreateVolume", create(f"{name}-{number}")).ok
    for stream in streams:
        stream.cancel()


# -------------------- sizes --------------------


@slow_in_hub
def test_a_create_volume_of_3_mb_passes_and_so_does_an_answer(shared: Routed, name: str) -> None:
    request = create_of_bytes(name, 3_000_000)
    answer = volume(name)
    answer.volume.volume_context["filler"] = "y" * 3_000_000
    shared.vendor.on("CreateVolume", lambda call: answer if call.request == request else volume("wrong"))
    outcome = shared.sidecar.call("CreateVolume", request)
    shared.vendor.as_usual("CreateVolume")
    assert outcome.answer == answer


def test_with_a_higher_limit_requests_pass_and_an_answer_that_no_sidecar_takes_is_still_unavailable(
    bridge: Bridge, vendor: Vendor, name: str
) -> None:
    flag = "--max-message=8MiB"
    bridge.start_hub(flag)
    bridge.start_agent("n1", vendor.socket, flags=[flag])
    sidecar = bridge.start_proxy("vendor.test", flag).sidecar()
    bridge.wait_routed(sidecar)
    assert sidecar.call("CreateVolume", create_of_bytes(name, 5_000_000)).answer == volume(name)
    answer = volume(name)
    answer.volume.volume_context["filler"] = "y" * 5_000_000
    vendor.on("CreateVolume", lambda _: answer)
    assert sidecar.call("CreateVolume", create(name)).refusal == unavailable(
        f"an answer of {answer.ByteSize()} bytes is larger than the limit of 4194304 bytes; no stock sidecar takes a "
        "larger one",
    )


def test_an_agent_with_a_lower_limit_than_its_hub_is_told_apart(bridge: Bridge, vendor: Vendor, name: str) -> None:
    bridge.start_hub()
    bridge.start_agent("n1", vendor.socket, flags=["--max-message=1MiB"])
    sidecar = bridge.start_proxy("vendor.test").sidecar()
    bridge.wait_routed(sidecar)
    assert sidecar.call("CreateVolume", create_of_bytes(name, 2 * MIB)).refusal == unavailable(
        "a CSI message of 2097152 bytes is larger than the limit of 1048576 bytes; raise --max-message on hub, driver "
        "and agent",
    )
    assert sidecar.call("CreateVolume", create_of_bytes(name, MIB)).answer == volume(name)


# -------------------- a slow link --------------------


@in_each_form
@pytest.mark.endurance
@pytest.mark.timeout(1_500)
def test_4_mib_at_64_kbit_per_second_pass_and_another_call_is_answered_meanwhile(
    bridge: Bridge, vendor: Vendor, tmp_path: Path
) -> None:
    # With TLS, which holds back more than plain TCP does, so that a pong comes later.
    size, patience_s, authority, flag = 4 * MIB, 1_200.0, Authority(tmp_path), "--keepalive=10s"
    hub = bridge.start_hub(flag, *authority.hub().flags)
    link = bridge.start_link(rate="64kbit")
    flags = [flag, f"--hub=wss://{link.address}", *authority.edge("n1").flags]
    bridge.start_agent("n1", vendor.socket, through=link.address, flags=flags)
    sidecar = bridge.start_proxy("vendor.test").sidecar()
    bridge.wait_routed(sidecar)
    before = link.command("stats")
    answer = volume("down")
    answer.volume.volume_context["filler"] = "y" * (size - 1_000)
    vendor.on("CreateVolume", lambda call: answer if call.request.name == "down" else volume("up"))
    calls = [sidecar.start("CreateVolume", create_of_bytes("up", size)), sidecar.start("CreateVolume", create("down"))]

    def a_tenth_has_passed() -> bool:
        now = link.command("stats")
        return all(now[way] - before[way] > size / 10 for way in ("bytes_up", "bytes_down"))

    wait_for(a_tenth_has_passed, what="tenth of each message", timeout_s=patience_s)
    assert sidecar.call("GetCapacity", timeout_s=patience_s).ok
    assert not any(call.done for call in calls)
    assert [call.outcome(patience_s=patience_s).answer for call in calls] == [volume("up"), answer]
    assert len(hub.logged("edge n1 is connected")) == 1, "the link did not stay up"
