"""A stranger floods the join listener."""

from pathlib import Path

from common.messages import Ack, Chunk, End, Goodbye, Kind, Open, Priority
from common.net.enrolment import Join, encode
from tests.kit.bridge import Bridge
from tests.kit.enrolling import NodeKey
from tests.kit.joinable_hub import JoinableHub

MANY = 200


def test_a_stranger_cannot_make_the_hub_check_one_request_after_another(bridge: Bridge, tmp_path: Path) -> None:
    joinable = JoinableHub(bridge, tmp_path)
    question = encode(Join("0123", b"x" * 32, "n1", NodeKey().request))
    served = 0
    with joinable.dial() as stranger:
        for stream in range(1, 2 * MANY, 2):
            stranger.frames(Open(stream, Kind.JOIN, Priority.CALL, "", "", "", "", 0), Chunk(stream, 0, question))
            frames: list[object] = []
            while not any(isinstance(frame, End | Goodbye) for frame in frames):
                frames += stranger.next_frames()
            if any(isinstance(frame, Goodbye) for frame in frames):
                break
            stranger.frames(Ack(stream, delivered=True))
            served += 1
    assert served <= 10
