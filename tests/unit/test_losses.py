"""What the hub has lost: it stands on the disk until somebody says otherwise, and a first start looks for it."""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from cloud.first_start import begin
from cloud.losses import Losses
from cloud.placement.claims import Claims
from cloud.placement.requests import VOLUME, Thing
from cloud.sources.source import Item, Objects
from cloud.store import Store
from common.errors import NewerState
from common.objects import Ref, Stamp

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from cloud.sources.source import Source


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "hub.losses"


@pytest.fixture(autouse=True)
def at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything happens at one time."""
    monkeypatch.setattr("cloud.losses.time.time", lambda: 1_795_252_323.9)


def line(what: str) -> str:
    return f"2026-11-21T09:12:03Z {what}"


def created(path: Path) -> Losses:
    losses = Losses(path)
    losses.create()
    return losses


def test_the_losses_of_a_newer_hub_are_refused_and_left_as_they_are(path: Path) -> None:
    content = b"version 2\nsomething else".ljust(4_096, b"\n")
    path.write_bytes(content)
    with pytest.raises(NewerState, match=r"hub\.losses: was written by a newer hub \(schema 2"):
        Losses(path)
    assert path.read_bytes() == content


def test_nothing_is_lost_at_first(path: Path) -> None:
    losses = created(path)
    assert (losses.standing, losses.file_found) == ((), False)
    assert (Losses(path).standing, Losses(path).file_found) == ((), True)


def test_what_was_lost_stands_in_order_and_with_the_first_time_until_it_is_cleared(path: Path) -> None:
    losses = created(path)
    assert losses.add("one was lost")
    assert losses.add("another was lost")
    assert not losses.add("one was lost")
    expected = (line("one was lost"), line("another was lost"))
    assert losses.standing == Losses(path).standing == expected
    assert Losses(path).clear() == expected
    assert Losses(path).standing == ()


def test_what_is_at_risk_is_lost_for_the_next_hub_alone(path: Path) -> None:
    losses = created(path)
    losses.put_at_risk("writes fail")
    losses.put_at_risk("writes fail")
    assert losses.standing == ()
    assert Losses(path).standing == (line("writes fail"),)
    losses.clear()  # what is in memory can still be lost
    assert Losses(path).standing == (line("writes fail"),)
    losses.put_at_risk("")
    assert Losses(path).standing == ()


def test_the_list_is_bounded_and_says_that_it_is_not_all(path: Path) -> None:
    losses = created(path)
    for number in range(1_000):
        losses.add(f"a report of edge node n{number} {'ü' * 400}")
    losses.put_at_risk("writes fail")
    assert losses.standing[-1] == line("more was lost than is listed here")
    assert Losses(path).standing == (*losses.standing, line("writes fail"))
    assert path.stat().st_size == 4_096


def test_a_long_loss_is_cut_and_known_again(path: Path) -> None:
    losses = created(path)
    long = f"\x1b{'x' * 5_000}"
    assert losses.add(long)
    assert not losses.add(long)
    assert len(losses.standing[0]) < 500
    assert losses.standing[0].isprintable()


@pytest.mark.parametrize("content", [bytes(4_096), b"\xff" * 10, b"2026 x\x1b[2J"], ids=["zeros", "binary", "escape"])
def test_a_list_that_is_damaged_itself_is_a_loss(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    losses = created(path)
    assert losses.standing == Losses(path).standing == (line(f"{path} was damaged"),)


def test_the_file_is_overwritten_in_place_so_that_a_full_disk_can_hold_it(path: Path) -> None:
    losses = created(path)
    before = path.stat()
    losses.add("one was lost")
    after = path.stat()
    assert (after.st_ino, after.st_size, after.st_blocks) == (before.st_ino, before.st_size, before.st_blocks)


def test_where_the_list_cannot_be_written_the_loss_stands_in_memory_and_is_not_cleared(
    path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = created(path)

    def fail(*_: object) -> int:
        raise OSError("disk on fire")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", fail)
        losses.add("one was lost")
        assert f"cannot write {path}; a restarted hub will not know of the loss: disk on fire" in caplog.messages
        with pytest.raises(OSError, match="on fire"):
            losses.clear()
        assert losses.standing == (line("one was lost"),)
    losses.clear()
    assert losses.standing == ()


DRIVER = "d.example"


class Hub:
    """The records of a hub on disk."""

    def __init__(self, directory: Path) -> None:
        self.store = Store(directory)
        self.claims = Claims(directory)
        self.losses = self.store.losses

    def begin(self, source: Source | None, *, settled: Callable[[], None] = lambda: None) -> None:
        begin(self.store, self.claims, source, settled=settled)
        assert self.claims.losses.doubt == self.losses.doubt

    async def create(self, name: str, handle: str) -> None:
        """Record a volume as a create of this hub on n1 does."""
        await self.claims.made(DRIVER, self.claims.begin(DRIVER, name, "n1"), "n1", [Thing(VOLUME, handle)])


@asynccontextmanager
async def hub(directory: Path) -> AsyncIterator[Hub]:
    opened = Hub(directory)
    try:
        yield opened
    finally:
        await opened.claims.close()
        await opened.store.close()


def volumes(*bodies: dict[str, Any]) -> dict[Ref, Item]:
    return {Ref("PersistentVolume", "", it["metadata"]["name"]): Item(Stamp("u", "1"), it) for it in bodies}


def volume(
    name: str = "pv-1", *, key: str = "csi-bridge.io/node", by: str = DRIVER, handle: str = "v"
) -> dict[str, Any]:
    """A PersistentVolume that is bound to n1; `by` has made it."""
    term = {"matchExpressions": [{"key": key, "operator": "In", "values": ["n1"]}]}
    return {
        "metadata": {"name": name, "annotations": {"pv.kubernetes.io/provisioned-by": by} if by else {}},
        "spec": {
            "csi": {"driver": DRIVER, "volumeHandle": handle},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
        },
    }


async def test_volumes_of_an_earlier_hub_are_a_loss_until_an_operator_settles_it(tmp_path: Path) -> None:
    async with hub(tmp_path) as first:
        objects = Objects()
        first.begin(objects)
        assert "has not read all PersistentVolumes yet" in first.losses.standing[0]
        objects.update(volumes(volume()), ready=True)
        (loss,) = first.losses.standing
        assert "PersistentVolume pv-1 of driver d.example was made on edge node n1" in loss
    async with hub(tmp_path) as second:
        second.begin(Objects())
        assert second.losses.standing == (loss,)
        second.losses.clear()
    async with hub(tmp_path) as third:
        third.begin(objects)
        assert third.losses.standing == ()


@pytest.mark.parametrize(
    "body",
    [
        volume(by=""),
        volume(by="kubernetes.io/no-provisioner"),
        volume(key="topology.d.example/node"),
        {"metadata": {"name": "nfs"}, "spec": {"nfs": {"path": "/"}}},
    ],
    ids=["static", "static with an annotation", "of KubeEdge", "of no driver"],
)
async def test_a_first_install_beside_other_volumes_is_not_stopped(tmp_path: Path, body: dict[str, Any]) -> None:
    async with hub(tmp_path) as first:
        objects = Objects()
        first.begin(objects)
        objects.update(volumes(body), ready=True)
        assert first.losses.standing == ()
        assert not first.store.is_new


async def test_a_volume_that_the_hub_has_made_before_it_could_look_is_none_of_an_earlier_hub(tmp_path: Path) -> None:
    async with hub(tmp_path) as first:
        objects = Objects()
        first.begin(objects)
        await first.create("CreateVolume pvc-1", "mine")
    async with hub(tmp_path) as second:
        second.begin(objects)
        objects.update(volumes(volume("pv-1", handle="mine")), ready=True)
        assert second.losses.standing == ()
        assert not second.store.is_new


async def test_a_volume_of_an_earlier_hub_is_found_beside_those_that_this_one_has_made(tmp_path: Path) -> None:
    async with hub(tmp_path) as first:
        objects = Objects()
        first.begin(objects)
        await first.create("CreateVolume pvc-1", "mine")
        objects.update(volumes(volume("pv-1", handle="mine"), volume("pv-2", handle="theirs")), ready=True)
        assert "PersistentVolume pv-2 of driver d.example" in first.losses.standing[0]


async def test_watches_look_again_when_it_is_certain(tmp_path: Path) -> None:
    async with hub(tmp_path) as first:
        objects, seen = Objects(), list[tuple[str, ...]]()
        first.begin(objects, settled=lambda: seen.append(first.losses.standing))
        objects.update(volumes(volume(by="")))
        assert seen == []
        objects.update({}, ready=True)
        objects.update(volumes(volume("later")))
        assert seen == [()]


async def test_a_restart_before_the_volumes_are_read_looks_again(tmp_path: Path) -> None:
    async with hub(tmp_path) as first:
        first.begin(Objects())
    async with hub(tmp_path) as second:
        objects = Objects()
        second.begin(objects)
        objects.update(volumes(volume()), ready=True)
        assert len(second.losses.standing) == 1


async def test_an_operator_who_trusts_the_hub_before_it_has_looked_is_believed(tmp_path: Path) -> None:
    async with hub(tmp_path) as first:
        objects = Objects()
        first.begin(objects)
        first.losses.clear()
        objects.update(volumes(volume()), ready=True)
        assert first.losses.standing == ()


async def test_a_hub_that_has_run_before_does_not_look(tmp_path: Path) -> None:
    async with hub(tmp_path) as first:
        first.begin(None)  # it has no objects
        assert (first.store.is_new, first.losses.standing) == (False, ())
    async with hub(tmp_path) as second:
        objects = Objects()
        second.begin(objects)
        objects.update(volumes(volume()), ready=True)
        assert second.losses.standing == ()
