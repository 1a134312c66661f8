"""A hub that begins with an empty state directory: it finds the volumes of an earlier hub, or it is a first install."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from cloud.first_start import begin
from cloud.sources.source import Item, Objects
from cloud.store import Store
from common.objects import Ref, Stamp

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

DRIVER = "d.example"


def nobody() -> None:
    """Nobody waits for the outcome."""


@asynccontextmanager
async def store(directory: Path) -> AsyncIterator[Store]:
    opened = Store(directory)
    try:
        yield opened
    finally:
        await opened.close()


def volumes(*bodies: dict[str, Any]) -> dict[Ref, Item]:
    return {Ref("PersistentVolume", "", it["metadata"]["name"]): Item(Stamp("u", "1"), it) for it in bodies}


def volume(name: str = "pv-1", *, key: str = "csi-bridge.io/node", by: str = DRIVER) -> dict[str, Any]:
    """A PersistentVolume that is bound to n1; `by` has made it."""
    term = {"matchExpressions": [{"key": key, "operator": "In", "values": ["n1"]}]}
    return {
        "metadata": {"name": name, "annotations": {"pv.kubernetes.io/provisioned-by": by} if by else {}},
        "spec": {
            "csi": {"driver": DRIVER, "volumeHandle": "v"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
        },
    }


async def test_volumes_of_an_earlier_hub_are_a_loss_until_an_operator_settles_it(tmp_path: Path) -> None:
    async with store(tmp_path) as first:
        objects = Objects()
        begin(first, [first.losses], objects, settled=nobody)
        assert "has not read all PersistentVolumes yet" in first.losses.standing[0]
        objects.update(volumes(volume()), ready=True)
        (loss,) = first.losses.standing
        assert "PersistentVolume pv-1 of driver d.example was made on edge node n1" in loss
    async with store(tmp_path) as second:
        begin(second, [second.losses], Objects(), settled=nobody)
        assert second.losses.standing == (loss,)
        second.losses.clear()
    async with store(tmp_path) as third:
        begin(third, [third.losses], objects, settled=nobody)
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
    async with store(tmp_path) as first:
        objects = Objects()
        begin(first, [first.losses], objects, settled=nobody)
        objects.update(volumes(body), ready=True)
        assert first.losses.standing == ()
        assert not first.is_new


async def test_watches_look_again_when_it_is_certain(tmp_path: Path) -> None:
    async with store(tmp_path) as first:
        objects, seen = Objects(), list[tuple[str, ...]]()
        begin(first, [first.losses], objects, settled=lambda: seen.append(first.losses.standing))
        objects.update(volumes(volume(by="")))
        assert seen == []
        objects.update({}, ready=True)
        objects.update(volumes(volume("later")))
        assert seen == [()]


async def test_a_restart_before_the_volumes_are_read_looks_again(tmp_path: Path) -> None:
    async with store(tmp_path) as first:
        begin(first, [first.losses], Objects(), settled=nobody)
    async with store(tmp_path) as second:
        objects = Objects()
        begin(second, [second.losses], objects, settled=nobody)
        objects.update(volumes(volume()), ready=True)
        assert len(second.losses.standing) == 1


async def test_an_operator_who_trusts_the_hub_before_it_has_looked_is_believed(tmp_path: Path) -> None:
    async with store(tmp_path) as first:
        objects = Objects()
        begin(first, [first.losses], objects, settled=nobody)
        first.losses.clear()
        objects.update(volumes(volume()), ready=True)
        assert first.losses.standing == ()


async def test_a_hub_without_objects_has_nothing_to_look_for(tmp_path: Path) -> None:
    async with store(tmp_path) as first:
        begin(first, [first.losses], None, settled=nobody)
        assert (first.is_new, first.losses.standing) == (False, ())


async def test_a_hub_that_has_run_before_does_not_look(tmp_path: Path) -> None:
    async with store(tmp_path) as first:
        begin(first, [first.losses], None, settled=nobody)
    async with store(tmp_path) as second:
        objects = Objects()
        begin(second, [second.losses], objects, settled=nobody)
        objects.update(volumes(volume()), ready=True)
        assert second.losses.standing == ()
