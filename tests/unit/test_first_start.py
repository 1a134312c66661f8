"""A hub that begins with an empty state directory: it finds the volumes of an earlier hub, or it is a first install."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from cloud.first_start import begin
from cloud.placement.claim_store import NO_ID, NO_NAME, Holding
from cloud.placement.requests import VOLUME, Thing
from cloud.placement.sqlite_claims import SqliteClaims
from cloud.sources.source import Item, Objects
from cloud.store import Store
from common.objects import Ref, Stamp

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from cloud.sources.source import Source

DRIVER = "d.example"


class Hub:
    """The records of a hub on disk."""

    def __init__(self, directory: Path) -> None:
        self.store = Store(directory)
        self.claims = SqliteClaims(directory)
        self.losses = self.store.losses

    def begin(self, source: Source | None, *, settled: Callable[[], None] = lambda: None) -> None:
        begin(self.store, self.claims, source, settled=settled)
        assert self.claims.losses.doubt == self.losses.doubt

    async def create(self, name: str, handle: str) -> None:
        """Record a volume as a create of this hub on n1 does."""
        await self.claims.claim(DRIVER, name, "n1", NO_NAME)
        thing = Thing(VOLUME, handle)
        await self.claims.record(DRIVER, "n1", {thing: Holding(name)}, {thing: NO_ID})


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


async def test_a_hub_without_objects_has_nothing_to_look_for(tmp_path: Path) -> None:
    async with hub(tmp_path) as first:
        first.begin(None)
        assert (first.store.is_new, first.losses.standing) == (False, ())


async def test_a_hub_that_has_run_before_does_not_look(tmp_path: Path) -> None:
    async with hub(tmp_path) as first:
        first.begin(None)
    async with hub(tmp_path) as second:
        objects = Objects()
        second.begin(objects)
        objects.update(volumes(volume()), ready=True)
        assert second.losses.standing == ()
