"""The mark of the hub's records: what was lost stands until an operator says otherwise."""

import asyncio
import shutil
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from cloud.claims.claims import Claims
from cloud.claims.rules import VOLUME, Thing
from cloud.leadership.incarnation import Incarnation
from cloud.records.records import RecordKind
from cloud.records.sqlite import SqliteRecords
from cloud.sources.source import Item, Source
from common.errors import LeadershipLost, SettingsError
from common.objects.objects import Ref, Stamp
from common.store.database_writer import WriteFailed
from tests.kit.memory_records import MemoryRecords
from tests.kit.waiting import settle

DRIVER = "d.example"
NOW = 1_795_252_323.9


class Hub:
    """The records of a hub on disk."""

    def __init__(self, directory: Path, now: float = NOW, sign: bytes = b"") -> None:
        self.records = SqliteRecords(directory, retry_s=60.0)
        self.incarnation = Incarnation(self.records, now=lambda: now)
        self.incarnation.sign = sign
        self.claims = Claims(self.records)

    def look(self, source: Source | None, *, settled: Callable[[], None] = lambda: None) -> None:
        self.incarnation.settled = settled
        self.incarnation.look(source, self.claims)

    @property
    def loss(self) -> str:
        return self.incarnation.loss

    def meet(self, mark: str = "") -> str:
        """The mark that the agent of n1 has after it has shown one."""
        return self.incarnation.meet("n1", mark) or mark

    async def create(self, name: str, handle: str) -> None:
        """Record a volume as a create of this hub on n1 does."""
        await self.claims.record_made(DRIVER, self.claims.begin(DRIVER, name, "n1"), "n1", [Thing(VOLUME, handle)])


async def test_a_mark_that_somebody_edits_or_deletes_is_written_again() -> None:
    records, owners = MemoryRecords(), dict[RecordKind, Any]()
    records.watch = lambda kind, now, _adopt=None: owners.update({kind: now})  # type: ignore[method-assign]  # the test is the records
    incarnation = Incarnation(records, now=lambda: NOW)
    await incarnation.count()
    assert owners[RecordKind.MARK](("incarnation",)).body["epochs"] == [int(NOW)]


@asynccontextmanager
async def hub(directory: Path, now: float = NOW, sign: bytes = b"") -> AsyncIterator[Hub]:
    opened = Hub(directory, now, sign)
    try:
        await opened.incarnation.count()
        yield opened
    finally:
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
        objects = Source()
        first.look(objects)
        assert "has not read all PersistentVolumes yet" in first.loss
        objects.update(volumes(volume()), ready=True)
        loss = first.loss
        assert "PersistentVolume pv-1 of driver d.example was made on edge node n1" in loss
        assert loss.startswith("2026-11-21T09:12:03Z ")
    async with hub(tmp_path) as second:
        second.look(Source())
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
        objects = Source()
        first.look(objects)
        objects.update(volumes(body), ready=True)
        assert first.loss == ""


async def test_a_volume_that_the_hub_has_made_before_it_could_look_is_none_of_an_earlier_hub(tmp_path: Path) -> None:
    async with hub(tmp_path) as first:
        objects = Source()
        first.look(objects)
        await first.create("CreateVolume pvc-1", "mine")
    async with hub(tmp_path) as second:
        second.look(objects)
        objects.update(volumes(volume("pv-1", handle="mine")), ready=True)
        assert second.loss == ""


async def test_a_volume_of_an_earlier_hub_is_found_beside_those_that_this_one_has_made(tmp_path: Path) -> None:
    async with hub(tmp_path) as first:
        objects = Source()
        first.look(objects)
        await first.create("CreateVolume pvc-1", "mine")
        objects.update(volumes(volume("pv-1", handle="mine"), volume("pv-2", handle="theirs")), ready=True)
        assert "PersistentVolume pv-2 of driver d.example" in first.loss


async def test_watches_look_again_when_it_is_certain(tmp_path: Path) -> None:
    async with hub(tmp_path) as first:
        objects, seen = Source(), list[str]()
        first.look(objects, settled=lambda: seen.append(first.loss))
        objects.update(volumes(volume(by="")))
        assert seen == []
        objects.update({}, ready=True)
        objects.update(volumes(volume("later")))
        assert seen == [""]


async def test_a_restart_before_the_volumes_are_read_looks_again(tmp_path: Path) -> None:
    async with hub(tmp_path) as first:
        first.look(Source())
    async with hub(tmp_path) as second:
        objects = Source()
        second.look(objects)
        objects.update(volumes(volume()), ready=True)
        assert "PersistentVolume pv-1" in second.loss


async def test_an_operator_who_trusts_the_hub_before_it_has_looked_is_believed(tmp_path: Path) -> None:
    async with hub(tmp_path) as first:
        objects = Source()
        first.look(objects)
        await first.incarnation.trust()
        objects.update(volumes(volume()), ready=True)
        assert first.loss == ""


async def test_a_hub_that_has_run_before_does_not_look(tmp_path: Path) -> None:
    async with hub(tmp_path) as first:
        first.look(None)  # it has no objects
        assert first.loss == ""
    async with hub(tmp_path) as second:
        objects = Source()
        second.look(objects)
        objects.update(volumes(volume()), ready=True)
        assert second.loss == ""


async def test_a_trust_that_cannot_be_written_leaves_the_loss(tmp_path: Path) -> None:
    async with hub(tmp_path) as first:
        objects = Source()
        first.look(objects)
        full(tmp_path)
        with pytest.raises(WriteFailed):
            await first.incarnation.trust()
        assert "has not read all PersistentVolumes yet" in first.loss


async def test_a_trust_whose_write_worked_although_it_failed_leaves_the_loss_after_a_restart() -> None:
    records = MemoryRecords()
    incarnation = Incarnation(records, now=lambda: NOW)
    await incarnation.count()
    incarnation.meet("n1", f"{'0' * 16} {int(NOW)} ")
    loss, records.held = incarnation.loss, []
    trusting = asyncio.create_task(incarnation.trust())
    await settle()
    ((done, changes),), records.held = records.held, None
    await records.write(changes)
    done.set_exception(WriteFailed("memory", "no answer"))
    with pytest.raises(WriteFailed):
        await trusting
    assert loss
    for each in (incarnation, Incarnation(records)):
        assert each.loss == loss


async def test_a_hub_that_cannot_write_the_mark_of_new_records_does_not_start(tmp_path: Path) -> None:
    opened = Hub(tmp_path)
    full(tmp_path)
    with pytest.raises(SettingsError, match=r"state\.db: cannot be written: disk is full"):
        await opened.incarnation.count()
    await opened.records.close()


async def test_one_of_several_hubs_does_not_lead_with_the_epoch_of_its_predecessor(tmp_path: Path) -> None:
    async with hub(tmp_path) as first:
        full(tmp_path)
        await first.incarnation.count()  # an hour later
    opened = Hub(tmp_path)
    with pytest.raises(LeadershipLost, match=r"cannot write its epoch: .*disk is full"):
        await opened.incarnation.count(is_one_of_several=True)
    await opened.records.close()


# -------------------- the agents' marks --------------------


async def test_an_agent_that_knows_other_records_shows_that_they_are_lost_until_an_operator_settles_it(
    tmp_path: Path,
) -> None:
    async with hub(tmp_path / "before") as before:
        mark = before.meet()
        assert before.meet(mark) == mark
    for _ in range(2):  # it is written, and the witness keeps its mark
        async with hub(tmp_path / "after", NOW + 9) as after:
            assert after.meet(mark) == mark
            assert "edge node n1 knows other records of this hub (" in after.loss
            assert " of 2026-11-21T09:12:03Z) than these (" in after.loss
            assert after.incarnation.meet("n2", "") == ""
    async with hub(tmp_path / "after", NOW + 60) as after:
        assert len(await after.incarnation.trust()) == 1
        assert after.meet(mark) != mark
        assert after.loss == ""


async def test_an_agent_that_knows_a_later_start_shows_that_the_records_are_an_older_copy(tmp_path: Path) -> None:
    async with hub(tmp_path) as first:
        early = first.meet()
    (tmp_path / "copy").mkdir()
    shutil.copy(tmp_path / "state.db", tmp_path / "copy")
    async with hub(tmp_path, NOW + 1) as second:
        late = second.meet(early)
        assert second.loss == ""
    for later in (2, 3):  # also after another start of the copy
        async with hub(tmp_path / "copy", NOW + later) as third:
            assert third.meet(early) != early
            assert third.loss == ""
    async with hub(tmp_path / "copy", NOW + 4) as fourth:
        assert fourth.meet(late) == late
        assert "edge node n1 knows a later state of the hub's records (" in fourth.loss


async def test_a_loss_that_an_agent_shows_while_an_epoch_is_written_is_kept_with_it(tmp_path: Path) -> None:
    async with hub(tmp_path / "other", NOW + 9) as other:
        mark = other.meet()
    async with hub(tmp_path / "this") as this:
        early, counting = this.meet(), asyncio.create_task(this.incarnation.count())
        await asyncio.sleep(0)
        this.meet(mark)
        await counting
        late = this.incarnation._state.epochs[-1]
    async with hub(tmp_path / "this", NOW + 99) as again:
        assert again.loss
        assert again.incarnation._state.epochs[:2] == [int(early.split()[1]), late]


async def test_each_start_has_an_epoch_of_its_own_and_all_are_known_however_many(tmp_path: Path) -> None:
    marks = []
    for number in range(202):
        async with hub(tmp_path, NOW - number) as each:  # the clock is set back
            marks.append(each.meet())
            assert [each.meet(mark) for mark in marks] == [marks[-1]] * len(marks)
            assert each.loss == ""
    assert len(set(marks)) == 202


async def test_a_full_disk_keeps_no_hub_from_its_start_and_agents_get_the_mark_of_the_start_before(
    tmp_path: Path,
) -> None:
    async with hub(tmp_path) as first:
        mark = first.meet()
    full(tmp_path)
    async with hub(tmp_path, NOW + 5) as second:
        assert second.meet() == mark


@pytest.mark.parametrize(("epoch", "is_lost"), [(60, False), (61, True)])
async def test_an_operators_word_settles_the_marks_of_before_alone(tmp_path: Path, epoch: int, is_lost: bool) -> None:
    async with hub(tmp_path / "other", NOW + epoch) as other:
        mark = other.meet()
    async with hub(tmp_path / "this", NOW + 60) as this:
        await this.incarnation.trust()
        this.meet(mark)
        assert bool(this.loss) is is_lost
        await this.incarnation.trust()  # as it has heard of it, whatever its clock says
        this.meet(mark)
        assert this.loss == ""


async def test_a_node_that_invents_the_highest_epoch_lets_no_later_loss_pass_unnoticed(tmp_path: Path) -> None:
    async with hub(tmp_path / "this") as this:
        this.meet(f"{'0' * 16} {10**11 - 1} ")
        await this.incarnation.trust()
        mark = this.meet()
    async with hub(tmp_path / "other") as other:
        other.meet(mark)
        assert other.loss


async def test_a_mark_that_the_hub_has_not_signed_counts_for_nothing(tmp_path: Path) -> None:
    async with hub(tmp_path / "other", sign=b"key") as other:
        mark = other.meet()
    async with hub(tmp_path / "this", NOW + 9, sign=b"key") as this:
        text, _, signature = mark.rpartition(" ")
        for forged in (
            f"{text} ",
            f"{text}0 {signature}",
            f"{text} {signature[:-1]}",
            "x" * 70_000,
            "a\n 1 b",
            f"{mark}\n",
        ):
            assert this.meet(forged) != forged
            assert this.loss == ""
        this.meet(mark)
        assert this.loss
