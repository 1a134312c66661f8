"""A proxy driver with a good certificate, or whoever stole its key, floods the hub and its nodes with calls."""

from pathlib import Path

from google.protobuf.message import Message

from common.csi import csi_pb2 as csi
from common.messages import Cancel, Chunk, End, Kind, Open, Priority
from common.status import Code
from tests.kit.answers import path_of
from tests.kit.requests import create_at
from tests.kit.spoken_node import Site, attend, report
from tests.kit.stranger import Stranger, hello
from tests.kit.waiting import wait_for

MINE = "mine.example"
ZONE = {"zone": "z1"}
LONG = 3_000_000
MOST = 10
CHUNK = 16_384


def test_a_proxy_driver_does_not_fill_the_hubs_disk_and_memory_with_long_names(short_dir: Path, tmp_path: Path) -> None:
    with Site(short_dir, tmp_path) as site:
        site.told(site.node("n1"), report(MINE, "n1", segments=ZONE))
        for number, placement in enumerate(("auto", "pinned")):
            with Stranger(site.hub.address, tls=site.authority.driver(MINE).client()) as thief:
                thief.greet(hello("driver", MINE, placement=placement))
                call(thief, "CreateVolume", create_at(f"{number}" * LONG, ZONE))
                refused = thief.next_end()
            assert refused.code == Code.UNAVAILABLE
            assert f"a create whose name has {LONG} characters" in refused.message
            assert not is_stored(short_dir, f"{number}" * 2_000)


def test_a_proxy_driver_does_not_fill_them_with_long_ids_of_deleted_volumes(short_dir: Path, tmp_path: Path) -> None:
    with Site(short_dir, tmp_path) as site:
        node = site.told(site.node("n1"), report(MINE, "n1", segments=ZONE))
        with Stranger(site.hub.address, tls=site.authority.driver(MINE).client()) as thief:
            thief.greet(hello("driver", MINE))
            call(thief, "DeleteVolume", csi.DeleteVolumeRequest(volume_id="v" * LONG))
            attend(node, until=lambda: node.times_asked("DeleteVolume") > 0)
            assert thief.next_end().code == Code.OK
        assert not is_stored(short_dir, "v" * 2_000)


def test_a_proxy_driver_does_not_fill_the_hubs_disk_with_creates_that_it_cancels(
    short_dir: Path, tmp_path: Path
) -> None:
    with Site(short_dir, tmp_path, f"--max-open-creates={MOST}") as site:
        site.told(site.node("n1"), report(MINE, "n1", segments=ZONE))
        with Stranger(site.hub.address, tls=site.authority.driver(MINE).client()) as thief:
            thief.greet(hello("driver", MINE, placement="local"))
            for number in range(3 * MOST):
                call(thief, "CreateVolume", create_at(f"invented-{number:03}", ZONE), stream=2 * number + 1)
            wait_for(lambda: stored(short_dir, 3 * MOST) >= MOST, what="names on the disk")
            thief.frames(*(Cancel(2 * number + 1) for number in range(3 * MOST)))
            ends: list[End] = []
            while len(ends) < 3 * MOST:
                ends += [frame for frame in thief.next_frames() if isinstance(frame, End)]
        assert stored(short_dir, 3 * MOST) == MOST
        assert sum("--max-open-creates" in end.message for end in ends) == 2 * MOST
        assert {end.code for end in ends} <= {Code.UNAVAILABLE, Code.CANCELLED}


def call(caller: Stranger, method: str, request: Message, *, stream: int = 1) -> None:
    body = request.SerializeToString()
    caller.frames(Open(stream, Kind.CALL, Priority.CALL, MINE, path_of(method), "", "", 0))
    for start in range(0, len(body), CHUNK):
        part = body[start : start + CHUNK]
        caller.frames(Chunk(stream, len(body) - start - len(part), part))


def stored(directory: Path, count: int) -> int:
    """Return how many of so many invented names the hub's disk has."""
    return sum(is_stored(directory, f"invented-{number:03}") for number in range(count))


def is_stored(directory: Path, text: str) -> bool:
    return any(text.encode() in file.read_bytes() for file in (directory / "hub").glob("state.db*"))
