"""A hub's directory of manifests: from a written file to what a node is to hold."""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from cloud.detach.mounts import no_mounts
from cloud.detach.sole_use import SoleUse
from cloud.records.sqlite import SqliteRecords
from cloud.sources.manifests import manifests as manifests_module
from cloud.sources.manifests.manifests import Manifests
from cloud.sync.closures import Closures
from cloud.sync.fact_table import FactTable
from cloud.sync.facts import FactSink
from common.objects.objects import Object, Ref, Stamp, encode_body
from tests.kit.cluster_objects import as_yaml, claim, driver, node, pod, volume
from tests.kit.memory_records import MemoryRecords
from tests.kit.trusting import TRUSTING
from tests.kit.waiting import until

DATA = Ref("PersistentVolumeClaim", "default", "data")


def manifests_of(directory: Path, table: FactTable | None = None, *, bindings: Path | None = None) -> Manifests:
    table = table or FactTable(MemoryRecords(), TRUSTING)
    manifests = Manifests(directory, table.node_reports, bindings or directory.parent / "bindings.json")
    table.subscribe(manifests.wake)
    return manifests


@asynccontextmanager
async def running(manifests: Manifests) -> AsyncIterator[Closures]:
    """The closures of manifests that are read for as long as the block lasts."""
    task = asyncio.create_task(manifests.run())
    try:
        yield Closures(manifests, TRUSTING)
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


def put(path: Path, *objects: Any) -> None:
    """Write a file as it should be written: beside its place, then into it."""
    beside = path.with_name(f".{path.name}")
    beside.write_text(as_yaml(*objects))
    beside.replace(path)


def move(old: Path, new: Path) -> None:
    old.rename(new)


def held(closures: Closures, name: str = "n1") -> set[str]:
    return {str(ref) for ref in closures.stamps(name)}


WEB = (pod("web", claims=("data",)), claim("data", volume="v"), volume("v"), driver())
WEBS = {
    "Node n1",
    "Pod default/web",
    "PersistentVolumeClaim default/data",
    "PersistentVolume v",
    "CSIDriver d.example",
}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = tmp_path / "manifests"
    made.mkdir()
    return made


async def test_what_is_written_reaches_the_node_and_what_is_deleted_leaves_it(directory: Path) -> None:
    put(directory / "web.yaml", *WEB)
    async with running(manifests_of(directory)) as closures:
        await until(lambda: closures.is_ready, what="readiness")
        assert held(closures) == WEBS
        told: list[set[str]] = []
        closures.watch("n1", lambda: told.append(held(closures)))
        put(directory / "more.yaml", pod("more"))
        await until(lambda: told, what="news of the new pod")
        assert told == [WEBS | {"Pod default/more"}]
        (directory / "more.yaml").unlink()
        await until(lambda: held(closures) == WEBS, what="news of the deleted pod")
        put(directory / "web.yaml", *WEB[1:])
        await until(lambda: held(closures) == set(), what="news of the pod that was taken out of its file")


async def test_a_broken_file_is_told_once_keeps_what_it_held_and_is_told_again_when_mended(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "csi_bridge")
    empty = f"{directory} has no manifest yet: no node is told anything until it has one"
    manifests = manifests_of(directory)
    async with running(manifests) as closures:
        await until(lambda: empty in caplog.messages, what="line of the empty directory")
        assert (closures.is_ready, manifests.problems()) == (False, [])
        put(directory / "web.yaml", *WEB)
        await until(lambda: closures.is_ready, what="readiness")
        (directory / "web.yaml").write_text(
            "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: c}]}\n"
        )
        await until(lambda: len(manifests.problems()) == 2, what="problem")
        said = "web.yaml:4: Pod default/web: spec.nodeName is missing"
        assert manifests.problems() == [
            said,
            "the objects of all manifests stay as they were until every manifest is good",
        ]
        put(directory / "other.yaml", pod("other"))
        put(directory / "web.yaml", *WEB, node("n1", zone="z"))
        await until(lambda: "Pod default/other" in held(closures), what="news of the other file")
        assert manifests.problems() == []
    ours = [record.getMessage() for record in caplog.records if record.name == "csi_bridge.hub.manifests"]
    assert ours == [empty, said, f"settled: {said}"]


async def test_with_a_file_broken_from_the_start_nobody_is_told_anything(directory: Path) -> None:
    put(directory / "a.yaml", *WEB)
    (directory / "b.yaml").write_text("b: [")
    manifests = manifests_of(directory)
    async with running(manifests) as closures:
        await until(lambda: len(manifests.problems()) == 2, what="problem")
        assert not closures.is_ready
        assert manifests.problems()[1] == "no node is told anything until every manifest is good"
        told: list[bool] = []
        closures.watch("n1", lambda: told.append(closures.is_ready))
        put(directory / "b.yaml", node("n2"))
        await until(lambda: closures.is_ready, what="readiness")
        assert told[-1]
        assert manifests.problems() == []


async def test_a_mistake_in_here_is_a_problem_and_the_next_look_goes_on(
    directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    put(directory / "web.yaml", *WEB)
    manifests = manifests_of(directory)
    async with running(manifests) as closures:
        await until(lambda: closures.is_ready, what="readiness")
        with monkeypatch.context() as broken:
            looks: list[str] = []

            def fail(*_: object) -> None:
                looks.append("failed")
                raise KeyError("a bug")

            broken.setattr(manifests_module, "bind", fail)
            put(directory / "other.yaml", pod("other"))
            await until(lambda: len(looks) > 2, what="third look")
            await until(manifests.problems, what="problem")
        assert "Pod default/web" in held(closures)
        await until(lambda: "Pod default/other" in held(closures), what="news of the other file")
        await until(lambda: not manifests.problems(), what="end of the problem")
    assert len([record for record in caplog.records if record.exc_info]) == 1


async def test_a_directory_that_comes_goes_and_comes_back_takes_nothing_along(directory: Path) -> None:
    away = directory.with_name("away")
    move(directory, away)
    manifests = manifests_of(directory)
    async with running(manifests) as closures:
        await until(manifests.problems, what="problem")
        assert not closures.is_ready
        put(away / "web.yaml", *WEB)
        move(away, directory)
        await until(lambda: closures.is_ready, what="readiness")
        move(directory, away)
        await until(manifests.problems, what="problem")
        assert held(closures) == WEBS
        move(away, directory)
        await until(lambda: not manifests.problems(), what="end of the problem")
        put(directory / "more.yaml", pod("more"))
        await until(lambda: "Pod default/more" in held(closures), what="news from the directory that is back")


async def test_a_claims_new_size_goes_from_its_node_into_its_closure(directory: Path, tmp_path: Path) -> None:
    asking = claim("data", volume="v")
    asking["spec"]["resources"] = {"requests": {"storage": "1Gi"}}
    put(directory / "web.yaml", WEB[0], asking, volume("v"), driver())

    def size(closures: Closures) -> str:
        found = closures.read(DATA)
        return str(found.read()["status"]["capacity"]["storage"]) if found else ""

    records = SqliteRecords(tmp_path / "state")
    table = FactTable(records, TRUSTING)
    async with running(manifests_of(directory, table)) as closures:
        await until(lambda: closures.is_ready, what="readiness")
        assert size(closures) == "1Gi"
        put(directory / "web.yaml", WEB[0], asking, volume("v", size="2Gi"), driver())
        told: list[str] = []
        closures.watch("n1", lambda: told.append(size(closures)))
        await until(lambda: told, what="news of the larger volume")
        assert told == ["1Gi"]
        fact = encode_body({"status": {"capacity": {"storage": "2Gi"}}})
        await FactSink(closures, table, SoleUse(table, no_mounts()).claim).store(
            "n1", Object(DATA, Stamp("", "1"), fact)
        )
        await until(lambda: size(closures) == "2Gi", what="new size")
    await records.close()
    records = SqliteRecords(tmp_path / "state")
    async with running(manifests_of(directory, FactTable(records, TRUSTING))) as closures:
        await until(lambda: closures.is_ready, what="readiness after a restart")
        assert size(closures) == "2Gi"
    await records.close()


async def test_a_pair_counts_once_it_is_on_the_disk_and_stays_after_a_restart_unless_the_file_is_damaged(
    directory: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(directory / "web.yaml", WEB[0], claim("data"), volume("v", size="2Gi"), driver())
    bindings = tmp_path / "state" / "bindings.json"

    def bound(closures: Closures) -> str:
        found = closures.read(DATA)
        return str(found.read()["spec"]["volumeName"]) if found else ""

    manifests = manifests_of(directory, bindings=bindings)
    async with running(manifests) as closures:
        await until(manifests.problems, what="problem")
        assert "bindings.json cannot be written (No such file or directory), and no" in manifests.problems()[0]
        assert not closures.is_ready
        bindings.parent.mkdir()
        await until(lambda: bound(closures) == "v", what="the pair")
        assert manifests.problems() == []
    put(directory / "more.yaml", volume("better"))
    for damage, volumes in ((b"", "v"), (b"[", "better")):
        bindings.write_bytes(damage or bindings.read_bytes())
        async with running(manifests_of(directory, bindings=bindings)) as closures:
            await until(lambda: closures.is_ready, what="readiness after a restart")
            assert bound(closures) == volumes
    assert f"{bindings} cannot be used, so claims that name no volume are matched anew" in caplog.text


def write_many(directory: Path) -> None:
    """Four thousand objects in two files."""
    for part in range(2):
        objects: list[Any] = []
        for name in (f"p{part}-{number}" for number in range(500)):
            bound = claim(name, volume=name), volume(name, claim=f"default/{name}")
            objects += [pod(name, claims=(name,)), *bound, node(name)]
        listed = {"apiVersion": "v1", "kind": "List", "items": objects}
        (directory / f"{part}.yaml").write_text(json.dumps(listed))  # which is YAML as well, and read as such


async def test_the_loop_goes_on_while_four_thousand_objects_are_read(directory: Path) -> None:
    write_many(directory)
    longest = 0.0  # of the loop's own turns, in CPU seconds of its thread: other processes do not count
    async with running(manifests_of(directory)) as closures:
        last = time.thread_time()
        while not closures.is_ready:
            await asyncio.sleep(0.005)
            longest, last = max(longest, time.thread_time() - last), time.thread_time()
        assert len(closures.stamps("n1")) == 3_000 + 1
    assert (
        longest < 2.0
    )  # a twentieth of a second on the machine that it was written on, and 5 s if it read them itself
