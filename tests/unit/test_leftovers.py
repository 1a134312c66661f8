"""What an earlier time left: shown while no volume accounts for it, and removed where that can harm nobody."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from common.objects.objects import Ref
from edge.csi_volume_plugin import VolumePlugin
from edge.disk.found_volumes import Found, Published, Staged, Unreadable
from edge.disk.layout import PLUGIN, VOL_DATA, Layout, handle_hash
from edge.disk.root_dir import Kind, RootDir, RootDirError
from edge.disk.volume_data import of_block, of_staging, of_target
from edge.volume_errors import NotReady
from edge.volumes import Pod, PodVolume, Volume
from edge.wanted.states import Device, Publication
from tests.kit.edge_volumes import DRIVER, MOUNTED, EdgeVolumes
from tests.kit.waiting import settle

MISSING = "there is no vol_data.json"
STAGING = Unreadable(path=Path("/root") / handle_hash("h-data"), reason=MISSING, driver=DRIVER, bare=True)
IN_POD = Unreadable(path=Path("/root/pod"), reason=MISSING, pod_uid="web-uid", name="pv-data", bare=True)
DAMAGED = Unreadable(path=STAGING.path, reason="it is no JSON", driver=DRIVER)


def shown(edge: EdgeVolumes) -> list[str]:
    return [one.error for one in edge.manager.describe() if one.state == "left over"]


async def test_a_bare_directory_that_nobody_accounts_for_goes_at_once_also_without_a_hub(edge: EdgeVolumes) -> None:
    edge.plugin.found = Found(unreadable=(STAGING, IN_POD))
    edge.store.in_step = edge.store.ever_in_step = False
    await edge.start()
    assert edge.plugin.cleaned == [STAGING, IN_POD]
    assert shown(edge) == []


async def test_a_row_explains_a_bare_directory_for_good(edge: EdgeVolumes) -> None:
    device = Device(driver=DRIVER, handle="h-data", name="pv-data", boot="boot-1")
    publication = Publication(driver=DRIVER, handle="h-data", name="pv-data", pod_uid="web-uid", boot="boot-1")
    await edge.states.put(device)
    await edge.states.put(publication)
    edge.plugin.found = Found(unreadable=(STAGING, IN_POD))
    edge.plugin.fails("unpublish", NotReady("not now"))
    await edge.start()
    assert (shown(edge), edge.plugin.cleaned) == ([], [])
    await edge.clock.turn(1.0)
    assert edge.plugin.calls == ["unpublish h-data web-uid", "unpublish h-data web-uid", "unstage h-data"]
    assert [one for one in edge.plugin.cleaned if isinstance(one, Unreadable)] == []
    assert edge.manager.describe() == []


async def test_what_a_pod_wants_is_neither_shown_nor_touched_until_the_pod_is_gone(edge: EdgeVolumes) -> None:
    edge.drivers.by_name[DRIVER].registered = False
    edge.plugin.found = Found(unreadable=(STAGING, IN_POD))
    pod = edge.add_pod()
    await edge.start()
    assert (shown(edge), edge.plugin.cleaned) == ([], [])
    edge.store.drop(pod)
    await settle()
    assert edge.plugin.cleaned == [STAGING, IN_POD]
    assert shown(edge) == []


async def test_a_staging_that_may_have_been_made_stays_and_is_shown_until_somebody_removed_it(
    edge: EdgeVolumes,
) -> None:
    edge.plugin.found = Found(unreadable=(DAMAGED,))
    await edge.start()
    await edge.clock.turn(600.0)
    assert (shown(edge), edge.plugin.cleaned) == (["it is no JSON"], [])
    edge.plugin.found = Found()
    await edge.clock.turn(60.0)
    assert shown(edge) == []
    assert edge.clock.waiting == 0


async def test_what_came_to_lie_there_later_is_no_leftover(edge: EdgeVolumes) -> None:
    edge.plugin.found = Found(unreadable=(DAMAGED,))
    await edge.start()
    edge.plugin.found = Found(unreadable=(DAMAGED, IN_POD))
    await edge.clock.turn(60.0)
    assert (shown(edge), edge.plugin.cleaned) == (["it is no JSON"], [])


async def test_a_disk_that_does_not_answer_is_looked_at_later(
    edge: EdgeVolumes, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    edge.plugin.found = Found(unreadable=(DAMAGED,))
    await edge.start()

    async def refuse() -> Found:
        raise NotReady("input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(edge.plugin, "scan", refuse)
        await edge.clock.turn(60.0)
    assert "directories left from an earlier run cannot be cleaned up now: input/output error" in caplog.messages
    edge.plugin.found = Found()
    await edge.clock.turn(60.0)
    assert shown(edge) == []


async def test_a_pod_that_comes_while_the_hub_is_away_gets_its_directory_in_place_of_a_leftover(
    edge: EdgeVolumes,
) -> None:
    edge.plugin.found = Found(unreadable=(STAGING,))
    edge.store.in_step = False
    edge.add_volume(pv={"accessModes": ["ReadWriteMany"]})  # one writer's waits for the hub
    edge.add_pod()
    await edge.start()
    assert edge.plugin.calls == MOUNTED
    assert Ref("Pod", "default", "web") in edge.store.objects
    assert (shown(edge), edge.plugin.cleaned) == ([], [])


async def test_what_lies_in_a_directory_that_cannot_be_read_for_a_while_is_not_taken_for_gone(
    edge: EdgeVolumes,
) -> None:
    inside = Unreadable(path=Path("/root/pod/pv-data"), reason="it is no JSON", pod_uid="web-uid", name="pv-data")
    around = Unreadable(path=Path("/root/pod"), reason="input/output error", pod_uid="web-uid")
    edge.plugin.found = Found(unreadable=(inside, DAMAGED))
    edge.store.in_step = False
    await edge.start()
    edge.plugin.found = Found(unreadable=(around,))
    await edge.clock.turn(60.0)
    assert shown(edge) == ["it is no JSON"]
    edge.plugin.found = Found(unreadable=(inside,))
    edge.store.in_step = True
    edge.store.tell()
    await settle()
    assert edge.plugin.cleaned == [inside]


async def test_a_directory_of_several_volumes_stays_also_if_its_pod_is_gone(edge: EdgeVolumes) -> None:
    edge.plugin.found = Found(unreadable=(Unreadable(path=Path("/root/pod"), reason="bad", pod_uid="web-uid"),))
    await edge.start()
    await edge.clock.turn(60.0)
    assert (shown(edge), edge.plugin.cleaned) == (["bad"], [])


def lay(root: Path, name: str, *, block: bool) -> None:
    """A volume on the disk, staged and in the pod of its name."""
    layout, volume = Layout(root), Volume(driver=f"{name}.csi", handle=f"h-{name}", name=name, block=block)
    if block:
        files = {layout.block_data(name) / VOL_DATA: of_block(volume, "n1").encode()}
        files |= {layout.device_map(name, name): b"", layout.block_target(name, name): b""}
        files |= {layout.device_link(name, name): b""}
    else:
        pod = Pod(uid=name, namespace="default", name=name)
        wanted = PodVolume(pod=pod, volume=volume, volume_name=name)
        files = {layout.staging_dir(volume.driver, volume.handle) / VOL_DATA: of_staging(wanted).encode()}
        files |= {layout.volume_dir(name, name) / VOL_DATA: of_target(wanted, "n1").encode()}
    for path, content in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


@pytest.mark.parametrize(
    ("block", "bad", "published", "unreadable"),
    [
        (False, f"pods/a/volumes/{PLUGIN}", ["b"], {"pod_uid": "a"}),
        (False, "plugins/kubernetes.io/csi/a.csi", ["a", "b"], {"driver": "a.csi"}),
        (True, f"pods/a/volumeDevices/{PLUGIN}", ["a", "b"], {"pod_uid": "a", "block": True}),
        (True, "plugins/kubernetes.io/csi/volumeDevices/publish/a", ["a", "b"], {"name": "a", "block": True}),
        (True, "plugins/kubernetes.io/csi/volumeDevices/a/dev", ["a", "b"], {"name": "a", "block": True}),
    ],
)
async def test_a_directory_that_cannot_be_read_hides_no_other(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    block: bool,
    bad: str,
    published: list[str],
    unreadable: dict[str, Any],
) -> None:
    for name in ("a", "b"):
        lay(tmp_path, name, block=block)
    refuse(monkeypatch, tmp_path / bad)
    found = await VolumePlugin(tmp_path, "n1", {}.get).scan()
    assert sorted(one.pod_uid for one in found.published) == published
    assert "h-b" in {one.handle for one in found.staged}
    reason = f"cannot read {tmp_path / bad}: Input/output error"
    assert found.unreadable == (Unreadable(path=tmp_path / bad, reason=reason, **unreadable),)


@pytest.mark.parametrize("bad", ["pods", "plugins/kubernetes.io/csi", "plugins/kubernetes.io/csi/volumeDevices"])
async def test_without_the_directory_of_all_volumes_of_a_kind_nothing_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: str
) -> None:
    refuse(monkeypatch, tmp_path / bad)
    with pytest.raises(NotReady, match=f"cannot read .*{bad}: Input/output error"):
        await VolumePlugin(tmp_path, "n1", {}.get).scan()


def refuse(monkeypatch: pytest.MonkeyPatch, bad: Path) -> None:
    """The disk does not give this directory."""
    names = RootDir.names

    def fail(root: RootDir, path: Path) -> dict[str, Kind]:
        if path == bad:
            raise RootDirError(OSError(errno.EIO, os.strerror(errno.EIO)), "read", path)
        return names(root, path)

    monkeypatch.setattr(RootDir, "names", fail)


BLOCK = Unreadable(path=Path("/root/pv-data"), reason=MISSING, name="pv-data", block=True)
BLOCK_IN_POD = Unreadable(path=Path("/root/u1"), reason=MISSING, pod_uid="u1", name="pv-data", block=True)


@pytest.mark.parametrize(
    ("one", "volume"),
    [
        (STAGING, Staged(driver=DRIVER, handle="h-data", name="pv-data")),
        (IN_POD, Published(driver=DRIVER, handle="h-data", name="pv-data", pod_uid="web-uid")),
        (BLOCK, Staged(driver=DRIVER, handle="h-data", name="pv-data", block=True)),
        (BLOCK_IN_POD, Published(driver=DRIVER, handle="h-data", name="pv-data", pod_uid="u1", block=True)),
    ],
)
def test_a_directory_is_the_volumes_that_has_its_place_there(one: Unreadable, volume: Published | Staged) -> None:
    assert [other.is_of(volume) for other in (STAGING, IN_POD, BLOCK, BLOCK_IN_POD)].count(True) == 1
    assert one.is_of(volume)


async def test_of_a_bare_directory_goes_what_is_empty_and_what_was_half_written(tmp_path: Path) -> None:
    plugin = VolumePlugin(tmp_path, "n1", {}.get)
    staging = plugin.layout.staging_target("d.csi", "h-data")
    staging.mkdir(parents=True)
    (staging.parent / "vol_data.json.new").touch()
    (one,) = (await plugin.scan()).unreadable
    assert one.bare
    assert await plugin.clean_leftovers(one)
    assert not staging.parent.exists()


@pytest.mark.parametrize("precious", ["globalmount/file", "vol_data.json", "file"])
async def test_of_a_bare_directory_nothing_goes_that_was_put_there_meanwhile(
    tmp_path: Path, precious: str, caplog: pytest.LogCaptureFixture
) -> None:
    plugin = VolumePlugin(tmp_path, "n1", {}.get)
    staging = plugin.layout.staging_target("d.csi", "h-data")
    staging.mkdir(parents=True)
    (one,) = (await plugin.scan()).unreadable
    (staging.parent / precious).write_text("precious")
    for _ in range(2):
        assert not await plugin.clean_leftovers(one)
    assert (staging.parent / precious).read_text() == "precious"
    assert [text for text in caplog.messages if "it is not empty" in text] == caplog.messages
    assert len(caplog.messages) == 1
