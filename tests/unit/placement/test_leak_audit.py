"""The leak audit: what is a leak, what is none, and what nobody can judge now."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cloud.claims.rules import SNAPSHOT, VOLUME, Thing
from cloud.nodes.question import Question
from cloud.operators import leak_audit, tally
from cloud.operators.leak_audit import LeakAudit
from cloud.parts.references import CONTENT, PERSISTENT_VOLUME, Reference, References
from cloud.parts.sync_part import SyncPart
from cloud.proxy.driver_settings import Mode
from cloud.sync.fact_kinds import Fact
from common.csi import csi_pb2 as csi
from common.errors import CallError
from common.objects import left_over
from common.objects.left_over import LeftOver
from common.objects.objects import Stamp
from common.operator_orders import Audit, Audited
from common.status import Code, Status
from tests.kit.placed_nodes import DRIVER, OK, RPC, Placed, Placing, Vendor, affinity, create, on, report

CAN = (RPC.CREATE_DELETE_VOLUME, RPC.CREATE_DELETE_SNAPSHOT, RPC.LIST_VOLUMES, RPC.LIST_SNAPSHOTS)
GRACE_S = 600.0
UID = "11111111-2222-3333-4444-555555555555"


def pv(handle: str, *, owner: str = "", leaving: bool = False) -> tuple[Any, Reference]:
    reference = Reference(PERSISTENT_VOLUME, f"pv-{handle}", f"uid-{handle}", owner, 5_000.0, 1 << 30, leaving)
    return (DRIVER, Thing(VOLUME, handle)), reference


def content(handle: str) -> tuple[Any, Reference]:
    return (DRIVER, Thing(SNAPSHOT, handle)), Reference(CONTENT, f"content-{handle}", f"uid-{handle}")


def lists(*volumes: str, snapshots: Iterable[str] = (), size_bytes: int = 0) -> Vendor:
    """A vendor that has these."""

    def answer(call: Question) -> tuple[bytes, Status]:
        if call.method.endswith("ListVolumes"):
            entries = [
                csi.ListVolumesResponse.Entry(volume=csi.Volume(volume_id=id_, capacity_bytes=size_bytes))
                for id_ in volumes
            ]
            return csi.ListVolumesResponse(entries=entries).SerializeToString(), OK
        if call.method.endswith("ListSnapshots"):
            of_snapshots = [
                csi.ListSnapshotsResponse.Entry(snapshot=csi.Snapshot(snapshot_id=id_)) for id_ in snapshots
            ]
            return csi.ListSnapshotsResponse(entries=of_snapshots).SerializeToString(), OK
        if call.method.endswith("CreateVolume"):
            name = csi.CreateVolumeRequest.FromString(call.request).name
            return csi.CreateVolumeResponse(volume=csi.Volume(volume_id=f"made-{name}")).SerializeToString(), OK
        return b"", OK

    return answer


@dataclass
class Site:
    """Two nodes that list, and Kubernetes."""

    world: Placed
    reading: References = field(default_factory=References)  # what the next reading of Kubernetes finds
    on_read: Callable[[int], None] = lambda _: None  # called at each reading with its number
    told: dict[str, Any] = field(default_factory=dict)  # the mounts that agents tell of
    has_references: bool = True
    readings: int = 0

    async def read(self) -> References:
        self.readings += 1
        self.on_read(self.readings)
        found = References(unread=dict(self.reading.unread), waiting=dict(self.reading.waiting))
        for key, references in self.reading.named.items():
            for reference in references:
                found.add([(key, reference)])
        return found

    def node_facts(self) -> list[tuple[str, Fact | None]]:
        return [
            (node, Fact(Stamp("u", "1"), {"status": status}) if status else None) for node, status in self.told.items()
        ]

    def refer(self, *found: tuple[Any, Reference]) -> None:
        for each in found:
            self.reading.add([each])

    def make_audit(self, **more: Any) -> LeakAudit:
        part = SyncPart(references=self.read if self.has_references else None, facts=self)  # type: ignore[arg-type]  # all of them that it needs
        return LeakAudit(self.world, self.world.placement, part, grace_s=GRACE_S, now=lambda: self.world.now, **more)

    async def audit(self, driver: str = "") -> Audited:
        return await self.make_audit().order(Audit(driver=driver), "pid 1 uid 0")

    async def leaks(self) -> list[tuple[str, str, list[str]]]:
        return [(leak.leak, leak.id, leak.nodes) for leak in (await self.audit()).leaks]

    def later(self, seconds: float = GRACE_S + 1) -> None:
        self.world.now += seconds


@pytest.fixture
async def site(placed: Placing) -> Site:
    """A site that has run for longer than the grace."""
    reports = [report(node, segments=on(node), capabilities=CAN) for node in ("n1", "n2")]
    world = placed(*reports)
    world.vendors = {"n1": lists(), "n2": lists()}
    site = Site(world)
    site.later()
    return site


async def made(site: Site, volume: str, name: str, node: str = "n1") -> None:
    """The ledger has a volume as made."""
    site.world.know(node, volume, name)


def doubt(site: Site) -> None:
    """A create of pvc-9 at n1 is in doubt."""
    store = site.world.store
    attempt = store.begin(DRIVER, "CreateVolume pvc-9", "n1")
    attempt.send()
    store.end_attempt(DRIVER, attempt, in_doubt=True)


# ---- orphans ---------------------------------------------------------------------------------------------------------


async def test_a_listed_volume_or_snapshot_that_nothing_refers_to_is_an_orphan_with_its_size_and_the_command(
    site: Site,
) -> None:
    site.world.vendors["n2"] = lists("vol-1", "lost", size_bytes=1 << 20)
    site.refer(pv("vol-1"))
    audited = await site.audit()
    (leak,) = audited.leaks
    assert (leak.leak, leak.id, leak.nodes, leak.size_bytes) == ("orphan", "lost", ["n2"], 1 << 20)
    assert leak.since is None
    assert leak.settle == f"csi-bridge audit --driver {DRIVER} --delete lost"
    assert audited.counts == {"orphan": 1, "ghost": 0, "stray": 0, "doubt": 0}
    assert audited.unasked == []
    site.world.vendors["n2"] = lists("vol-1", snapshots=["kept", "lost-too"])
    site.refer(content("kept"))
    assert await site.leaks() == [("orphan", "lost-too", ["n2"])]


async def test_a_volume_whose_object_comes_or_goes_while_the_audit_runs_is_no_orphan(site: Site) -> None:
    site.world.vendors["n1"] = lists("new", "old")
    site.refer(pv("old"))

    def change(number: int) -> None:
        if number == 2:
            site.reading.named.clear()
            site.refer(pv("new"))

    site.on_read = change
    assert await site.leaks() == []


async def test_what_the_bridge_has_just_made_is_no_orphan_until_the_grace_is_over(site: Site) -> None:
    await made(site, "vol-1", "CreateVolume pvc-1")
    site.world.vendors["n1"] = lists("vol-1")
    audited = await site.audit()
    assert audited.leaks == []
    assert any("--audit-grace" in note and "vol-1" in note for note in audited.notes)
    site.later()
    assert await site.leaks() == [("orphan", "vol-1", ["n1"])]


async def test_what_a_pinned_create_has_just_made_is_no_orphan_until_the_grace_is_over(site: Site) -> None:
    await site.world.ask("CreateVolume", create("pvc-1"), mode=Mode.PINNED, wanted="n1")
    site.world.vendors["n1"] = lists("made-pvc-1")
    assert await site.leaks() == []
    site.later()
    assert await site.leaks() == [("orphan", "made-pvc-1", ["n1"])]


async def test_a_hub_that_has_just_started_calls_nothing_of_unknown_age_an_orphan(site: Site) -> None:
    await site.world.restart()
    site.world.vendors["n1"] = lists("made-by-its-former-life")
    assert await site.leaks() == []
    site.later()
    assert await site.leaks() == [("orphan", "made-by-its-former-life", ["n1"])]


async def test_a_volume_without_a_record_is_not_judged_while_a_create_for_its_node_is_in_doubt(site: Site) -> None:
    doubt(site)
    site.world.vendors = {"n1": lists("perhaps"), "n2": lists("lost")}
    audited = await site.audit()
    assert {(leak.leak, leak.id) for leak in audited.leaks} == {("orphan", "lost"), ("doubt", "pvc-9")}
    assert any("perhaps" in note and "settle the doubts first" in note for note in audited.notes)


async def test_a_volume_that_was_made_for_a_claim_without_a_volume_is_no_orphan(site: Site) -> None:
    await made(site, "vol-1", f"CreateVolume pvc-{UID}")
    site.later()
    site.world.vendors["n1"] = lists("vol-1")
    site.reading.waiting = {UID: "claim default/data"}
    assert await site.leaks() == []
    site.reading.waiting = {}
    assert await site.leaks() == [("orphan", "vol-1", ["n1"])]


async def test_a_made_volume_of_a_driver_that_cannot_list_is_an_orphan_by_the_ledger(
    site: Site, tmp_path: Path
) -> None:
    site.world.tell(report("n1", segments=on("n1"), capabilities=CAN[:2]))
    await made(site, "vol-1", "CreateVolume pvc-1")
    site.later()
    audited = await site.audit()
    assert [(leak.leak, leak.id) for leak in audited.leaks] == [("orphan", "vol-1")]
    assert "has not listed it in this audit" in audited.leaks[0].about
    assert {(it.node, it.things, it.why) for it in audited.unasked} == {
        ("n1", "volume", "its driver cannot list volumes"),
        ("n1", "snapshot", "its driver cannot list snapshots"),
    }


async def test_an_object_that_goes_meanwhile_protects_a_volume_that_no_node_lists(site: Site) -> None:
    site.world.away = {"n1"}
    await made(site, "vol-1", "CreateVolume pvc-1")
    site.later()
    site.refer(pv("vol-1"))
    site.on_read = lambda number: site.reading.named.clear() if number == 2 else None
    assert await site.leaks() == []
    site.on_read = lambda _: None
    assert await site.leaks() == [("orphan", "vol-1", ["n1"])]


async def test_a_create_that_comes_into_doubt_meanwhile_protects_the_volumes_of_its_node(site: Site) -> None:
    site.world.vendors["n1"] = lists("perhaps")

    site.on_read = lambda number: doubt(site) if number == 2 else None
    assert await site.leaks() == [("doubt", "pvc-9", ["n1"])]


async def test_a_create_that_ends_meanwhile_protects_the_volumes_of_its_node(site: Site) -> None:
    site.world.vendors["n1"] = lists("perhaps")
    doubt(site)
    site.on_read = lambda n: site.world.store.free(DRIVER, ["CreateVolume pvc-9"]) if n == 2 else None
    assert await site.leaks() == []


async def test_several_nodes_of_one_storage_list_one_orphan(site: Site) -> None:
    for node in ("n1", "n2"):
        site.world.reports[node] = report(node, capabilities=CAN)
        site.world.vendors[node] = lists("shared")
    site.world.placement.changed(DRIVER)
    assert await site.leaks() == [("orphan", "shared", ["n1", "n2"])]


async def test_the_inline_volume_of_a_pod_is_no_orphan(site: Site) -> None:
    site.world.vendors["n1"] = lists(f"csi-{'a1' * 32}")
    assert await site.leaks() == []


@pytest.mark.parametrize("reading", [1, 2])
async def test_nothing_is_an_orphan_or_a_ghost_when_the_persistent_volumes_cannot_be_read(
    site: Site, reading: int
) -> None:
    site.world.vendors["n1"] = lists("vol-1")
    site.refer(pv("gone"))

    def fail(number: int) -> None:
        site.reading.unread = {VOLUME: "Kubernetes: list persistentvolumes: no answer"} if number == reading else {}

    site.on_read = fail
    audited = await site.audit()
    assert audited.leaks == []
    assert "volumes are not compared with Kubernetes: Kubernetes: list persistentvolumes: no answer" in audited.notes


async def test_a_hub_without_kubernetes_asks_no_node_and_says_so(site: Site) -> None:
    site.has_references = False
    site.world.vendors["n1"] = lists("vol-1")
    audited = await site.audit()
    assert audited.leaks == []
    assert site.world.calls == []
    assert "the hub follows no PersistentVolumes" in audited.notes[0]


# ---- ghosts ----------------------------------------------------------------------------------------------------------


async def test_a_persistent_volume_whose_volume_is_gone_is_a_ghost(site: Site) -> None:
    site.world.placement.affinity = affinity("n1", handle="gone")
    site.refer(pv("gone", owner="claim default/data"))
    (leak,) = (await site.audit()).leaks
    assert (leak.leak, leak.id, leak.nodes, leak.size_bytes) == ("ghost", "gone", ["n1"], 1 << 30)
    assert leak.since is not None
    assert leak.settle == "kubectl delete persistentvolumeclaim -n default data"
    assert leak.about.startswith("PersistentVolume pv-gone of claim default/data")


async def test_a_volume_that_only_a_node_that_is_away_may_have_is_no_ghost(site: Site) -> None:
    site.refer(pv("vol-1"))
    site.world.away = {"n2"}
    audited = await site.audit()
    assert audited.leaks == []
    assert {(it.node, it.things) for it in audited.unasked} == {("n2", "volume"), ("n2", "snapshot")}
    assert audited.unasked[0].why.startswith("edge node n2 is offline since")
    assert any("a node that may have it has not listed all: vol-1" in note for note in audited.notes)


async def test_another_node_that_is_away_does_not_keep_a_ghost_hidden(site: Site) -> None:
    site.world.placement.affinity = affinity("n1", handle="gone")
    site.refer(pv("gone"))
    site.world.away = {"n2"}
    assert await site.leaks() == [("ghost", "gone", ["n1"])]


async def test_a_node_by_the_ledger_counts_beside_that_of_the_persistent_volume(site: Site) -> None:
    site.world.placement.affinity = affinity("n1", handle="vol-1")
    site.refer(pv("vol-1"))
    await made(site, "vol-1", "CreateVolume pvc-1", node="n2")
    site.world.away = {"n2"}
    assert await site.leaks() == []


async def test_a_list_that_is_not_whole_makes_no_ghost(site: Site) -> None:
    site.refer(pv("vol-1"))
    endless = csi.ListVolumesResponse(next_token="again").SerializeToString()
    site.world.vendors["n1"] = lambda call: (endless if call.method.endswith("ListVolumes") else b"", OK)
    audited = await site.audit()
    assert audited.leaks == []
    assert [(it.node, it.things) for it in audited.unasked] == [("n1", "volume")]


async def test_an_object_that_appears_after_the_lists_or_leaves_is_no_ghost(site: Site) -> None:
    site.refer(pv("leaving", leaving=True))
    site.on_read = lambda number: site.refer(pv("new")) if number == 2 else None
    assert await site.leaks() == []


async def test_an_object_of_the_same_name_that_is_made_anew_meanwhile_is_no_ghost(site: Site) -> None:
    site.refer(pv("vol-1"))

    def replace(number: int) -> None:
        if number == 2:
            key, old = pv("vol-1")
            site.reading.named[key] = [old._replace(uid="another")]

    site.on_read = replace
    assert await site.leaks() == []


async def test_a_persistent_volume_of_a_driver_that_no_node_runs_is_left_alone(site: Site) -> None:
    _, reference = pv("vol-1")
    site.reading.add([(("ebs.csi.aws.com", Thing(VOLUME, "vol-1")), reference)])
    audited = await site.audit()
    assert audited.leaks == []
    assert audited.notes == []


# ---- strays and doubts -----------------------------------------------------------------------------------------------


async def test_a_mount_without_a_pod_is_a_stray_and_silent_nodes_are_named(site: Site) -> None:
    mount = LeftOver(
        driver=DRIVER, handle="vol-1", pv="pv-1", pod="default/web", why="busy", since="2026-11-21T09:12:03Z"
    )
    other = LeftOver(driver="another.csi", handle="vol-2")
    site.told = {"n1": {"leftOver": left_over.write([mount])}, "n2": None, "n3": {"leftOver": left_over.write([other])}}
    audited = await site.audit()
    (leak,) = audited.leaks
    assert (leak.leak, leak.id, leak.nodes) == ("stray", "vol-1", ["n1"])
    assert leak.about == "PersistentVolume pv-1; of pod default/web, which is gone; busy"
    assert leak.settle == "on node n1: csi-bridge edge volumes"
    assert leak.since is not None
    assert any("mounts are not known of n2" in note for note in audited.notes)


async def test_a_mount_that_a_node_told_of_before_it_went_away_is_marked(site: Site) -> None:
    site.told = {"n2": {"leftOver": left_over.write([LeftOver(driver=DRIVER, handle="vol-1")])}}
    site.world.away = {"n2"}
    (leak,) = (await site.audit()).leaks
    assert (leak.leak, leak.about) == ("stray", "no pod wants it; as told before the node went away")
    assert leak.since is None


async def test_a_create_in_doubt_is_a_doubt_until_its_retry_runs_and_settles_it(site: Site) -> None:
    site.world.vendors["n1"] = lambda call: (None, Status(Code.UNAVAILABLE, "busy"))
    await site.world.ask("CreateVolume", create("pvc-1"), mode=Mode.PINNED, wanted="n1")
    audited = await site.audit()
    (leak,) = audited.leaks
    assert (leak.leak, leak.thing, leak.id, leak.nodes) == ("doubt", "CreateVolume", "pvc-1", ["n1"])
    assert leak.since is not None
    assert leak.settle.startswith(f"csi-bridge call CreateVolume --driver {DRIVER} --node n1 ")
    site.world.vendors["n1"] = lists()
    await site.world.ask("CreateVolume", create("pvc-1"), mode=Mode.PINNED, wanted="n1")
    assert [leak.leak for leak in (await site.audit()).leaks] == []


@pytest.mark.parametrize("how", [{}, {"mode": Mode.PINNED, "wanted": "n1"}], ids=["placed", "pinned"])
async def test_a_create_that_runs_is_no_doubt_and_what_its_node_lists_is_not_judged(
    site: Site, how: dict[str, str]
) -> None:
    runs, gate = asyncio.Event(), asyncio.Event()

    async def slow(call: Question) -> tuple[bytes | None, Status]:
        if call.method.endswith("CreateVolume"):
            runs.set()
            await gate.wait()
        said: Any = lists("being-made")(call)
        return said  # type: ignore[no-any-return]  # a vendor's answer

    site.world.vendors["n1"] = slow
    asking = asyncio.create_task(site.world.ask("CreateVolume", create("pvc-1", on("n1")), **how))
    await runs.wait()
    assert await site.leaks() == []
    gate.set()
    await asking


# ---- bounds ----------------------------------------------------------------------------------------------------------


async def test_a_node_that_lists_very_much_is_cut_and_does_not_hide_the_others(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tally, "MOST_OF_NODE", 3)
    site.world.vendors = {"n1": lists(*(f"hostile-{i}" for i in range(50)), "x" * 2_000), "n2": lists("lost")}
    audited = await site.audit()
    assert sorted(leak.id for leak in audited.leaks) == ["hostile-0", "hostile-1", "hostile-2", "lost"]
    assert any("node n1 lists 48 more that nothing refers to" in note for note in audited.notes)


async def test_more_findings_than_an_answer_holds_are_counted(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leak_audit, "MOST_SHOWN", 2)
    site.world.vendors["n1"] = lists("a", "b", "c")
    audited = await site.audit()
    assert len(audited.leaks) == 2
    assert audited.counts["orphan"] == 3
    assert "1 more leaks are counted and not shown" in audited.notes


async def test_a_driver_that_the_hub_does_not_know_is_refused(site: Site) -> None:
    with pytest.raises(CallError, match="no node has reported driver other"):
        await site.audit("other.csi")


async def test_an_id_comes_with_all_that_refers_to_it(site: Site) -> None:
    site.refer(pv("vol-1", owner="claim default/data"))
    await made(site, "vol-1", f"CreateVolume pvc-{UID}")
    site.reading.waiting = {UID: "claim default/other"}
    audited = await site.make_audit().order(Audit(wanted="vol-1"), "pid 1 uid 0")
    assert audited.referring == [
        f"PersistentVolume pv-vol-1 of claim default/data names volume vol-1 of driver {DRIVER}",
        f"the hub's ledger has volume vol-1 of driver {DRIVER} on node n1, made by CreateVolume pvc-{UID}",
        "claim default/other waits for it",
    ]


async def test_an_audit_changes_nothing(site: Site) -> None:
    await made(site, "vol-1", "CreateVolume pvc-1")
    before = await site.world.store.ledger()
    site.world.vendors = {"n1": lists("vol-1", "a"), "n2": lists("b")}
    await site.audit()
    assert await site.world.store.ledger() == before
    assert {method.rpartition("/")[2] for _, method, _ in site.world.calls} == {"ListVolumes", "ListSnapshots"}


async def test_ten_thousand_volumes_on_a_hundred_nodes_leave_the_loop_its_turns_and_the_links_their_room(
    placed: Placing,
) -> None:
    nodes = [f"n{i}" for i in range(100)]
    world = placed(*(report(node, segments=on(node), capabilities=CAN) for node in nodes))
    under_way = most = turns = 0

    def vendor(node: str) -> Vendor:
        listing = lists(*(f"{node}-{i}" for i in range(100)))

        async def answer(call: Question) -> tuple[bytes | None, Status]:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            await asyncio.sleep(0)
            under_way -= 1
            said: Any = listing(call)
            return said  # type: ignore[no-any-return]  # a vendor's answer

        return answer

    world.vendors = {node: vendor(node) for node in nodes}
    site = Site(world)
    site.later()
    site.refer(*(pv(f"{node}-{i}") for node in nodes for i in range(100) if (node, i) != ("n7", 7)))

    async def ticking() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    ticker = asyncio.create_task(ticking())
    assert await site.leaks() == [("orphan", "n7-7", ["n7"])]
    ticker.cancel()
    assert most <= 20
    assert len(world.calls) == 200
    assert turns >= 10_000 // leak_audit._SLICE
