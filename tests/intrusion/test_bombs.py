"""Small messages that claim to be large, or unfold to large ones: the sender loses its link, the hub no memory."""

from pathlib import Path

import pytest

from common.messages import Chunk, Kind, Open, Priority, Reason
from tests.kit.bridge import Bridge, Hub
from tests.kit.intruder import resident_bytes
from tests.kit.operator import hub_state
from tests.kit.stranger import BINARY, Stranger, hello, websocket_frame
from tests.kit.waiting import wait_for

GROWTH_BYTES = 16 << 20

MSGPACK = {
    "nested arrays": b"\x91" * 1_000_000,
    "nested maps": b"\x81\x00" * 500_000,
    "4 billion entries": b"\xdd\xff\xff\xff\xff",
    "4 GB of bytes": b"\x93\x06\x01\xc6\xff\xff\xff\xff",
    "500,000 empty frames": b"\x90" * 500_000,
    "large extension": b"\xc9\xff\xff\xff\xff\x00",
}


@pytest.mark.parametrize("bomb", MSGPACK.values(), ids=MSGPACK)
@pytest.mark.parametrize("greeted", [False, True])
def test_a_bomb_of_msgpack_ends_the_session(insecure: Hub, bomb: bytes, greeted: bool) -> None:
    before = resident_bytes(insecure)
    with Stranger(insecure.address) as stranger:
        if greeted:
            stranger.greet(hello("edge", "n1"))
        else:
            stranger.upgrade()
        stranger.websocket(bomb)
        assert stranger.last_word()[0] == Reason.PROTOCOL_ERROR
    assert resident_bytes(insecure) - before < GROWTH_BYTES
    assert hub_state(insecure.uds)["software"]


def test_messages_that_claim_to_be_large_take_no_memory(insecure: Hub) -> None:
    """Each of 1,000 streams announces 4 MiB, and sends one byte: the session's window covers 15 of them."""
    before = resident_bytes(insecure)
    with Stranger(insecure.address) as stranger:
        stranger.greet(hello("driver", "d.example"))
        for number in range(1, 2_000, 2):
            stranger.frames(
                Open(number, Kind.WATCH, Priority.CALL, "d.example", "", "", "", 0),
                Chunk(number, (4 << 20) - 1, b"x"),
            )
        assert stranger.last_word() == (Reason.PROTOCOL_ERROR, "Chunk: a message that no credit covers")
    assert resident_bytes(insecure) - before < GROWTH_BYTES


def test_a_websocket_frame_that_claims_to_be_large_is_refused_at_its_head(insecure: Hub) -> None:
    with Stranger(insecure.address) as stranger:
        stranger.upgrade()
        stranger.send(websocket_frame(b"", opcode=BINARY, size=2**40))
        insecure.wait_logged("broke the WebSocket protocol")


def test_a_bomb_of_yaml_is_a_problem_and_no_memory(bridge: Bridge, tmp_path: Path) -> None:
    """The billion laughs: nine levels of nine aliases each are a file of a few hundred bytes, and 400 million texts."""
    levels = ["a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]"]
    levels += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
    body = "apiVersion: v1\nkind: Pod\nmetadata: {name: p, namespace: d, uid: u}\nspec: {}\n" + "\n".join(levels)
    (tmp_path / "manifests").mkdir()
    (tmp_path / "manifests" / "bomb.yaml").write_text(body + "\n")
    hub = bridge.start_hub(f"--manifests={tmp_path / 'manifests'}")
    problems = wait_for(lambda: [p for p in hub_state(hub.uds)["problems"] if "bomb" in p], what="problem of the bomb")
    assert "bomb.yaml" in problems[0]
    assert resident_bytes(hub) < 200 << 20
