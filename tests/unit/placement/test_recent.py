"""What pinned creates have made lately, and from when on the hub knows all of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloud.placement import recent as module
from cloud.placement.recent import KEPT_S, Recent
from cloud.placement.rules import VOLUME, Thing

if TYPE_CHECKING:
    import pytest


def place(number: int) -> tuple[str, Thing, str]:
    return "d.csi", Thing(VOLUME, f"vol-{number}"), "n1"


def test_things_are_kept_for_an_hour() -> None:
    recent = Recent(100.0)
    recent.add([place(1)], 200.0)
    recent.add([place(2)], 200.0 + KEPT_S)
    assert recent.all() == {place(1): 200.0, place(2): 200.0 + KEPT_S}
    recent.add([place(3)], 201.0 + KEPT_S)
    assert place(1) not in recent.all()
    assert recent.complete_since == 100.0


def test_beyond_the_limit_the_oldest_go_and_the_hub_knows_from_when_on_it_has_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MOST", 2)
    recent = Recent(100.0)
    for number in range(4):
        recent.add([place(number)], 200.0 + number)
    assert recent.all() == {place(2): 202.0, place(3): 203.0}
    assert recent.complete_since == 201.0


def test_a_thing_that_is_made_again_is_young_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 2)
    recent = Recent(100.0)
    recent.add([place(1), place(2)], 200.0)
    recent.add([place(1)], 300.0)
    recent.add([place(3)], 301.0)
    assert recent.all() == {place(1): 300.0, place(3): 301.0}
