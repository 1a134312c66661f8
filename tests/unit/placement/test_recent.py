"""What pinned creates have made lately, and from when on the hub knows all of it."""

import pytest

from cloud.claims import recent as module
from cloud.claims.recent import KEPT_S, Recent
from cloud.claims.rules import VOLUME, Thing
from common.csi import csi_pb2 as csi

CREATE = "/csi.v1.Controller/CreateVolume"


def place(number: int) -> tuple[str, Thing, str]:
    return "d.csi", Thing(VOLUME, f"vol-{number}"), "n1"


def note(recent: Recent, number: int, now: float, *, size_bytes: int = 0) -> None:
    volume = csi.Volume(volume_id=f"vol-{number}", volume_context={"more": "x" * size_bytes})
    recent.add("d.csi", "n1", CREATE, csi.CreateVolumeResponse(volume=volume).SerializeToString(), now)


def test_things_are_kept_for_an_hour() -> None:
    recent = Recent(100.0)
    note(recent, 1, 200.0)
    note(recent, 2, 200.0 + KEPT_S)
    assert dict(recent.all()) == {place(1): 200.0, place(2): 200.0 + KEPT_S}
    note(recent, 3, 201.0 + KEPT_S)
    assert place(1) not in dict(recent.all())
    assert recent.complete_since == 100.0


def test_beyond_the_limit_the_oldest_go_and_the_hub_knows_from_when_on_it_has_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MOST", 2)
    recent = Recent(100.0)
    for number in range(4):
        note(recent, number, 200.0 + number)
    assert dict(recent.all()) == {place(2): 202.0, place(3): 203.0}
    assert recent.complete_since == 201.0


@pytest.mark.parametrize("size_bytes", [0, 1_000_000])
def test_a_thing_that_is_made_again_is_young_again(monkeypatch: pytest.MonkeyPatch, size_bytes: int) -> None:
    monkeypatch.setattr(module, "MOST", 2)
    recent = Recent(100.0)
    note(recent, 1, 200.0, size_bytes=size_bytes)
    note(recent, 2, 200.0, size_bytes=size_bytes)
    note(recent, 1, 300.0, size_bytes=size_bytes)
    note(recent, 3, 301.0, size_bytes=size_bytes)
    assert dict(recent.all()) == {place(1): 300.0, place(3): 301.0}


def test_of_a_large_answer_only_the_things_are_kept() -> None:
    recent = Recent(100.0)
    note(recent, 1, 200.0, size_bytes=1_000_000)
    assert len(repr(recent._answers)) < 1_000
    assert dict(recent.all()) == {place(1): 200.0}


def test_an_answer_that_the_hub_cannot_read_names_nothing() -> None:
    recent = Recent(100.0)
    recent.add("d.csi", "n1", CREATE, b"\xff", 200.0)
    assert not dict(recent.all())
