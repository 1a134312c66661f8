"""The mark of the hub's records: what was lost stands until an operator says otherwise."""

from __future__ import annotations

import sqlite3
from contextlib import asynccontextmanager, closing
from typing import TYPE_CHECKING, Any

import pytest

from cloud.incarnation import Incarnation
from cloud.placement.claims import Claims
from cloud.placement.requests import VOLUME, Thing
from cloud.records.sqlite import SqliteRecords
from cloud.sources.source import Item, Objects
from common.database_writer import WriteFailed
from common.errors import SettingsError
from common.objects import Ref, Stamp

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from cloud.sources.source import Source

DRIVER = "d.example"
NOW = 1_795_252_323.9


class Hub:
    """The records of a hub on disk."""

    def __init__(self, directory: Path) -> None:
        self.records = SqliteRecords(directory, retry_s=60.0)
        self.incarnation = Incarnation(self.records, now=lambda: NOW)
        self.claims = Claims(directory)

    def look(self, source: Source | None, *, settled: Callable[[], None] = lambda: None) -> None:
        self.incarnation.look(source, self.claims, settled=settled)

    @property
    def loss(self) -> str:
        return self.incarnation.loss

    async def create(self, name: str, handle: str) -> None:
        """Record a volume as a create of this hub on n1 does."""
        await self.claims.made(DRIVER, self.claims.begin(DRIVER, name, "n1"), "n1", [Thing(VOLUME, handle)])


@asynccontextmanager
async def hub(directory: Path) -> AsyncIterator[Hub]:
    opened = Hub(directory)
    try:
        await opened.incarnation.begin()
        yield opened
    finally:
        await opened.claims.close()
        await opened.records.close()


def full(directory: Path) -> None:
    """Let every write fail from now on."""
    with closing(sqlite3.connect(directory / "state.db")) as other:
        other.execute("CREATE TRIGGER full BEFORE INSERT ON records BEGIN SELECT RAISE(ABORT, 'disk is full'); END")


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
        first.look(objects)
        assert "has not read all PersistentVolumes yet" in first.loss
        objects.update(volumes(volume()), ready=True)
        loss = first.loss
        assert "PersistentVolume pv-1 of driver d.example was made on edge node n1" in loss
        assert loss.startswith("2026-11-21T09:12:03Z ")
    async with hub(tmp_path) as second:
        second.look(Objects())
        assert second.loss == loss
        assert await second.incarnation.trust() == [loss]
    async with hub(tmp_path) as third:
        third.look(objects)
        assert third.loss == ""


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
        first.look(objects)
        objects.update(volumes(body), ready=True)
        assert first.loss == ""


async def test_a_volume_that_the_hub_has_made_before_it_could_look_is_none_of_an_earlier_hub(tmp_path: Path) -> None:
    async with hub(tmp_path) as first:
        objects = Objects()
        first.look(objects)
        await first.create("CreateVolume pvc-1", "mine")
    async with hub(tmp_path) as second:
        second.look(objects)
        objects.update(volumes(volume("pv-1", handle="mine")), ready=True)
        assert second.loss == ""


async def test_a_volume_of_an_earlier_hub_is_found_beside_those_that_this_one_has_made(tmp_path: Path) -> None:
    async with hub(tmp_path) as first:
        objects = Objects()
        first.look(objects)
        await first.create("CreateVolume pvc-1", "mine")
        objects.update(volumes(volume("pv-1", handle="mine"), volume("pv-2", handle="theirs")), ready=True)
        assert "PersistentVolume pv-2 of driver d.example" in first.loss


async def test_watches_look_again_when_it_is_certain(tmp_path: Path) -> None:
    async with hub(tmp_path) as first:
        objects, seen = Objects(), list[str]()
        first.look(objects, settled=lambda: seen.append(first.loss))
        objects.update(volumes(volume(by="")))
        assert seen == []
        objects.update({}, ready=True)
        objects.update(volumes(volume("later")))
        assert seen == [""]


async def test_a_restart_before_the_volumes_are_read_looks_again(tmp_path: Path) -> None:
    async with hub(tmp_path) as first:
        first.look(Objects())
    async with hub(tmp_path) as second:
        objects = Objects()
        second.look(objects)
        objects.update(volumes(volume()), ready=True)
        assert "PersistentVolume pv-1" in second.loss


async def test_an_operator_who_trusts_the_hub_before_it_has_looked_is_believed(tmp_path: Path) -> None:
    async with hub(tmp_path) as first:
        objects = Objects()
        first.look(objects)
        await first.incarnation.trust()
        objects.update(volumes(volume()), ready=True)
        assert first.loss == ""


async def test_a_hub_that_has_run_before_does_not_look(tmp_path: Path) -> None:
    async with hub(tmp_path) as first:
        first.look(None)  # it has no objects
        assert first.loss == ""
    async with hub(tmp_path) as second:
        objects = Objects()
        second.look(objects)
        objects.update(volumes(volume()), ready=True)
        assert second.loss == ""


async def test_a_trust_that_cannot_be_written_leaves_the_loss(tmp_path: Path) -> None:
    async with hub(tmp_path) as first:
        objects = Objects()
        first.look(objects)
        full(tmp_path)
        with pytest.raises(WriteFailed):
            await first.incarnation.trust()
        assert "has not read all PersistentVolumes yet" in first.loss


async def test_a_hub_that_cannot_write_the_mark_of_new_records_does_not_start(tmp_path: Path) -> None:
    opened = Hub(tmp_path)
    full(tmp_path)
    with pytest.raises(SettingsError, match=r"state\.db: cannot be written: disk is full"):
        await opened.incarnation.begin()
    await opened.claims.close()
    await opened.records.close()
