"""The steps on a volume: what a failure means and leaves. The parity with the kubelet shows those that succeed."""

import asyncio
import errno
import json
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.status import Code
from edge.calls.node_requests import Inputs
from edge.csi_volume_plugin import VolumePlugin
from edge.disk import mounts
from edge.disk.block_devices import BlockDevices
from edge.disk.found_volumes import Published, Staged
from edge.disk.root_dir import RootDir
from edge.volume_errors import NON_FINAL, NotReady, Uncertain, VolumeError, VolumeRefused
from edge.volumes import DriverRules, Pod, PodVolume, Volume
from tests.kit.node_driver import NO_ANSWER, ScriptedDriver

VOLUME = Volume(driver="d.csi", handle="vol-1", name="pv1", mount_options=("password=hunter2",))
BLOCK = Volume(driver="d.csi", handle="vol-2", name="pv2", block=True)
POD = Pod(uid="u1", namespace="shop", name="web")
WANTED = PodVolume(pod=POD, volume=VOLUME, volume_name="data")
PUBLISHED = Published(driver="d.csi", handle="vol-1", name="pv1", pod_uid="u1")
STAGED = Staged(driver="d.csi", handle="vol-1", name="pv1")
BLOCK_PUBLISHED = Published(driver="d.csi", handle="vol-2", name="pv2", pod_uid="u1", block=True)
BLOCK_STAGED = Staged(driver="d.csi", handle="vol-2", name="pv2", block=True)
HASH = "d2e8363faaac7ae76def3b14091d8eb5755f6b92e9531627aeec833a8731cc49"
STAGING = f"plugins/kubernetes.io/csi/d.csi/{HASH}"
TARGET = "pods/u1/volumes/kubernetes.io~csi/pv1"
FINAL = [code for code in Code if code and code not in NON_FINAL]


@pytest.fixture
def driver() -> ScriptedDriver:
    return ScriptedDriver()


@pytest.fixture
def plugin(tmp_path: Path, driver: ScriptedDriver) -> VolumePlugin:
    return VolumePlugin(tmp_path / "root", "n1", {"d.csi": driver}.get)


def on_disk(plugin: VolumePlugin) -> list[str]:
    """Files, links and empty directories, from the root on."""
    root = plugin.layout.root
    found = [path for path in root.rglob("*") if not path.is_dir() or not any(path.iterdir())]
    return sorted(str(path.relative_to(root)) for path in found)


INPUTS = Inputs(secrets={"k": "s3cret!"})


async def stage(plugin: VolumePlugin, volume: Volume = VOLUME, **more: Any) -> None:
    await plugin.stage(replace(WANTED, volume=volume), Inputs({"a": "context-value"}, {"k": "s3cret!"}), **more)


async def publish(plugin: VolumePlugin, wanted: PodVolume = WANTED, inputs: Inputs = INPUTS, **more: Any) -> None:
    await plugin.publish(wanted, inputs, **more)


async def failed(work: Any) -> VolumeError:
    with pytest.raises(VolumeError) as raised:
        await work
    return raised.value


async def test_a_driver_that_publishes_a_file_system_as_a_link_has_not_published_it(
    plugin: VolumePlugin, driver: ScriptedDriver, tmp_path: Path
) -> None:
    await stage(plugin)
    driver.broken.add("NodePublishVolume")
    driver.meanwhile["NodePublishVolume"] = lambda request: Path(request.target_path).symlink_to(tmp_path)
    error = await failed(publish(plugin))
    assert isinstance(error, Uncertain)
    assert error.why.endswith("mount is a symbolic link")


async def test_an_inline_volume_is_published_from_its_attributes(plugin: VolumePlugin, driver: ScriptedDriver) -> None:
    inline = replace(VOLUME, ephemeral=True, rules=DriverRules(ephemeral=True))
    await publish(plugin, replace(WANTED, volume=inline))
    assert json.loads((plugin.layout.root / TARGET / "vol_data.json").read_text())["volumeLifecycleMode"] == "Ephemeral"
    assert (await plugin.scan()).published == (replace(PUBLISHED, ephemeral=True),)


async def test_without_its_driver_nothing_happens(plugin: VolumePlugin) -> None:
    lost = replace(VOLUME, driver="lost.csi")
    assert isinstance(await failed(stage(plugin, lost)), NotReady)
    error = await failed(publish(plugin, replace(WANTED, volume=lost)))
    assert isinstance(error, NotReady)
    assert "driver lost.csi is not registered on this node" in str(error)
    assert isinstance(await failed(plugin.unpublish(replace(PUBLISHED, driver="lost.csi"))), NotReady)
    assert isinstance(await failed(plugin.unstage(replace(STAGED, driver="lost.csi"))), NotReady)
    assert not plugin.layout.root.exists()


@pytest.mark.parametrize("answer", [*((code, "later") for code in sorted(NON_FINAL)), NO_ANSWER])
async def test_a_code_that_is_not_final_or_no_answer_at_all_leaves_everything_in_place(
    plugin: VolumePlugin, driver: ScriptedDriver, answer: Any
) -> None:
    driver.answers |= {"NodeStageVolume": answer, "NodePublishVolume": answer}
    for error in (await failed(stage(plugin)), await failed(publish(plugin))):
        assert isinstance(error, Uncertain)
        if answer is not NO_ANSWER:
            assert error.code == answer[0]
    assert on_disk(plugin) == [f"{STAGING}/globalmount", f"{STAGING}/vol_data.json", f"{TARGET}/vol_data.json"]


@pytest.mark.parametrize("answer", [(Code.INTERNAL, "no"), NO_ANSWER])
async def test_a_volume_that_the_driver_does_not_take_down_keeps_its_data(
    plugin: VolumePlugin, driver: ScriptedDriver, answer: Any
) -> None:
    await stage(plugin)
    await publish(plugin)
    before = on_disk(plugin)
    driver.answers |= {"NodeUnpublishVolume": answer, "NodeUnstageVolume": answer}
    await failed(plugin.unpublish(PUBLISHED))
    await failed(plugin.unstage(STAGED))
    assert on_disk(plugin) == before


@pytest.mark.parametrize("code", FINAL)
async def test_a_final_code_leaves_nothing(plugin: VolumePlugin, driver: ScriptedDriver, code: Code) -> None:
    driver.answers |= {"NodeStageVolume": (code, "no"), "NodePublishVolume": (code, "no")}
    staged, published = await failed(stage(plugin)), await failed(publish(plugin))
    assert isinstance(staged, VolumeRefused)
    assert isinstance(published, VolumeRefused)
    assert str(staged) == f"driver d.csi answered NodeStageVolume with {code.name}: no"
    assert on_disk(plugin) == ["plugins/kubernetes.io/csi/d.csi", "pods"]


@pytest.mark.parametrize("answer", [(Code.INTERNAL, "no"), (Code.UNAVAILABLE, "later"), NO_ANSWER])
async def test_a_failed_republication_changes_nothing(
    plugin: VolumePlugin, driver: ScriptedDriver, answer: Any
) -> None:
    await publish(plugin)
    before = on_disk(plugin)
    driver.answers["NodePublishVolume"] = answer
    await failed(plugin.publish(WANTED, Inputs(), reconstructed=True))
    assert on_disk(plugin) == before


async def test_an_ok_with_nothing_at_the_target_is_not_believed(plugin: VolumePlugin, driver: ScriptedDriver) -> None:
    driver.broken.add("NodePublishVolume")
    error = await failed(publish(plugin))
    assert isinstance(error, Uncertain)
    assert "answered NodePublishVolume with OK, but there is nothing at" in str(error)


async def test_a_long_error_text_is_cut(plugin: VolumePlugin, driver: ScriptedDriver) -> None:
    driver.answers["NodeStageVolume"] = (Code.INTERNAL, "x" * 3_000_000)
    error = await failed(stage(plugin))
    assert len(str(error)) < 1200
    assert "(3000000 characters in all" in str(error)


async def test_what_was_secret_in_the_request_is_not_told(plugin: VolumePlugin, driver: ScriptedDriver) -> None:
    said = "mount -o password=hunter2 with s3cret! and context-value and token-of-the-pod failed"
    driver.answers |= {"NodeStageVolume": (Code.INTERNAL, said), "NodePublishVolume": (Code.ABORTED, said)}
    rules = DriverRules(token_audiences=(("a", 0),))
    wanted = replace(WANTED, volume=replace(VOLUME, rules=rules))
    tokens = {"a": {"token": "token-of-the-pod", "expirationTimestamp": "2026-01-01T00:00:00Z"}}
    staged = str(await failed(stage(plugin)))
    inputs = Inputs({"a": "context-value"}, {"k": "s3cret!"}, tokens)
    published = str(await failed(publish(plugin, wanted, inputs)))
    assert str(inputs) == "Inputs()"
    for secret in ("hunter2", "s3cret!", "context-value"):
        assert secret not in staged + published
    assert "token-of-the-pod" not in published
    assert "failed" in staged


async def test_data_that_cannot_be_written_keeps_the_driver_unasked(
    plugin: VolumePlugin, driver: ScriptedDriver
) -> None:
    (plugin.layout.root / STAGING / "vol_data.json").mkdir(parents=True)
    (plugin.layout.root / TARGET / "vol_data.json").mkdir(parents=True)
    for step in (stage, publish):
        error = await failed(step(plugin))
        assert isinstance(error, NotReady)
        assert "cannot write" in str(error)
    assert driver.calls == []


async def test_a_target_that_holds_files_is_never_emptied(plugin: VolumePlugin, driver: ScriptedDriver) -> None:
    await publish(plugin)
    (plugin.layout.root / TARGET / "mount/data").write_text("precious")
    driver.broken.add("NodeUnpublishVolume")
    error = await failed(plugin.unpublish(PUBLISHED))
    assert isinstance(error, Uncertain)
    assert "it is not empty" in str(error)
    assert (plugin.layout.root / TARGET / "mount/data").read_text() == "precious"
    assert (plugin.layout.root / TARGET / "vol_data.json").exists()


async def test_a_missing_vol_data_asks_the_driver_only_if_our_own_state_says_staged(
    plugin: VolumePlugin, driver: ScriptedDriver
) -> None:
    await stage(plugin)
    (plugin.layout.root / STAGING / "vol_data.json").unlink()
    driver.calls.clear()
    await plugin.unstage(STAGED, recorded=False)
    assert driver.methods == []
    await plugin.unstage(STAGED)
    assert driver.methods == ["Unstage"]
    assert on_disk(plugin) == ["plugins/kubernetes.io/csi/d.csi"]


@pytest.mark.parametrize("content", ["", "nonsense", '{"driverName":"d.csi"}'])
async def test_an_unreadable_vol_data_keeps_nothing_from_being_unstaged(
    plugin: VolumePlugin, driver: ScriptedDriver, content: str
) -> None:
    await stage(plugin)
    (plugin.layout.root / STAGING / "vol_data.json").write_text(content)
    await plugin.unstage(STAGED, recorded=False)
    assert driver.methods[-1] == "Unstage"


async def test_an_expansion_whose_answer_does_not_parse_is_not_taken_as_done(
    plugin: VolumePlugin, driver: ScriptedDriver
) -> None:
    driver.responses["NodeExpandVolume"] = b"\xff"
    error = await failed(plugin.expand(VOLUME, "u1", Inputs(), required_bytes=100))
    assert isinstance(error, Uncertain)
    assert "answered NodeExpandVolume with OK, but" in str(error)


async def test_an_expansion_names_the_pods_mount_and_the_staging(plugin: VolumePlugin, driver: ScriptedDriver) -> None:
    await plugin.expand(VOLUME, "u1", Inputs(), required_bytes=100)
    request = driver.last("NodeExpandVolume")
    assert request.volume_path == str(plugin.layout.root / TARGET / "mount")
    assert request.staging_target_path == str(plugin.layout.root / STAGING / "globalmount")


async def test_a_driver_is_asked_neither_to_stage_nor_to_expand_without_the_capability(
    plugin: VolumePlugin, driver: ScriptedDriver
) -> None:
    driver.capabilities = frozenset()
    await stage(plugin)
    await publish(plugin)
    assert driver.last("NodePublishVolume").staging_target_path == ""
    error = await failed(plugin.expand(VOLUME, "u1", Inputs(), required_bytes=100))
    assert (type(error), error.code) == (VolumeRefused, Code.UNIMPLEMENTED)
    await plugin.unpublish(PUBLISHED)
    await plugin.unstage(STAGED)
    assert driver.methods == ["Publish", "Unpublish"]
    assert not any(STAGING in path for path in on_disk(plugin))


async def test_stats_are_asked_as_far_as_the_driver_tells(plugin: VolumePlugin, driver: ScriptedDriver) -> None:
    driver.capabilities = frozenset()
    assert await plugin.stats(PUBLISHED) is None
    driver.capabilities = frozenset({1, 2, 7})
    driver.responses["NodeGetVolumeStats"] = b"\x0a\x04\x10\x05\x20\x01"
    driver.responses["NodeGetVolumeHealth"] = b"\x0a\x0a\x12\x08\x08\x01\x12\x04Slow"
    found = await plugin.stats(PUBLISHED)
    assert found is not None
    assert (found.capacity_bytes, found.abnormal, found.message) == (5, True, "Slow")
    assert driver.last("NodeGetVolumeHealth").staging_target_path == str(plugin.layout.root / STAGING / "globalmount")
    assert driver.last("NodeGetVolumeStats").staging_target_path == ""


async def test_stats_without_any_usage_are_an_error_as_for_the_kubelet(plugin: VolumePlugin) -> None:
    assert "without any usage" in str(await failed(plugin.stats(PUBLISHED)))


@pytest.mark.parametrize("block", [False, True])
async def test_a_refused_stage_of_a_reconstructed_volume_keeps_what_tells_that_it_may_be_staged(
    plugin: VolumePlugin, driver: ScriptedDriver, *, block: bool
) -> None:
    volume = replace(VOLUME, block=block)
    staged = Staged(driver=volume.driver, handle=volume.handle, name=volume.name, block=block)
    await stage(plugin, volume)
    driver.answers["NodeStageVolume"] = (Code.INTERNAL, "busy")
    await failed(stage(plugin, volume, reconstructed=True))
    await plugin.unstage(staged, recorded=False)
    assert driver.methods[-1] == "Unstage"


@pytest.mark.parametrize("block", [False, True])
async def test_a_full_disk_keeps_what_tells_that_a_reconstructed_volume_may_be_staged(
    plugin: VolumePlugin, driver: ScriptedDriver, monkeypatch: pytest.MonkeyPatch, *, block: bool
) -> None:
    volume = replace(VOLUME, block=block)
    staged = Staged(driver=volume.driver, handle=volume.handle, name=volume.name, block=block)
    await stage(plugin, volume)
    data_path = next(plugin.layout.root / path for path in on_disk(plugin) if path.endswith("vol_data.json"))
    data_path.write_text("another one")

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(RootDir, "write_file", full)
    assert isinstance(await failed(stage(plugin, volume, reconstructed=True)), NotReady)
    await plugin.unstage(staged, recorded=False)
    assert driver.methods == ["Stage", "Unstage"]


@pytest.fixture
def full_for_stagings(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk takes vol_data.json, and then no staging directory of a block volume."""
    make_dir = RootDir.make_dir

    def full(root: RootDir, path: Path) -> None:
        if "staging" in path.parts:
            raise OSError(errno.ENOSPC, "No space left on device")
        make_dir(root, path)

    monkeypatch.setattr(RootDir, "make_dir", full)


@pytest.mark.usefixtures("full_for_stagings")
async def test_a_block_volume_that_the_disk_has_no_room_to_stage_leaves_nothing(
    plugin: VolumePlugin, driver: ScriptedDriver
) -> None:
    error = await failed(stage(plugin, BLOCK))
    assert (type(error), str(error)) == (NotReady, "No space left on device")
    assert driver.calls == []
    assert not any("pv2" in path for path in on_disk(plugin))


@pytest.mark.usefixtures("full_for_stagings")
async def test_what_was_known_of_a_block_volume_stays_known_when_a_later_stage_finds_no_room(
    plugin: VolumePlugin, driver: ScriptedDriver
) -> None:
    stages, driver.capabilities = driver.capabilities, frozenset()
    await stage(plugin, BLOCK)
    driver.capabilities = stages
    await failed(stage(plugin, BLOCK))
    assert on_disk(plugin) == ["plugins/kubernetes.io/csi/volumeDevices/pv2/data/vol_data.json"]


@pytest.fixture
def mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Let the kernel's table say that something is mounted at a path."""
    table = tmp_path / "mountinfo"
    table.write_text("20 1 0:1 / / rw - rootfs rootfs rw\n")
    monkeypatch.setattr(mounts, "MOUNTINFO", table)

    def add(path: Path) -> None:
        table.write_text(f"{table.read_text()}21 20 0:5 /sdb {path} rw - devtmpfs devtmpfs rw\n")

    return add


async def test_a_block_volume_has_mounts_once_the_driver_has_published_it_and_stands_when_its_pod_has_it(
    plugin: VolumePlugin, mount: Callable[[Path], None]
) -> None:
    assert not plugin.has_mounts(BLOCK_PUBLISHED, await plugin.mount_table())
    mount(plugin.layout.block_target("pv2", "u1"))
    table = await plugin.mount_table()
    assert plugin.has_mounts(BLOCK_PUBLISHED, table)
    assert not plugin.is_mounted(BLOCK_PUBLISHED, table)
    assert not plugin.has_mounts(replace(BLOCK_PUBLISHED, pod_uid="u2"), table)
    mount(plugin.layout.device_map("pv2", "u1"))
    assert plugin.is_mounted(BLOCK_PUBLISHED, await plugin.mount_table())


async def test_a_block_volume_that_the_driver_has_published_to_a_pod_is_not_unstaged(
    plugin: VolumePlugin, driver: ScriptedDriver, mount: Callable[[Path], None]
) -> None:
    target = plugin.layout.block_target("pv2", "u1")
    await stage(plugin, BLOCK)
    mount(target)
    error = await failed(plugin.unstage(BLOCK_STAGED))
    assert (type(error), str(error)) == (NotReady, f"{BLOCK_STAGED.key} is still in use: it is mounted at {target}")
    assert driver.methods == ["Stage"]


async def test_data_in_the_wrong_place_is_not_believed(plugin: VolumePlugin) -> None:
    await stage(plugin)
    await publish(plugin)
    root = plugin.layout.root
    (root / TARGET).rename(root / "pods/u1/volumes/kubernetes.io~csi/other")
    (root / STAGING).rename(root / "plugins/kubernetes.io/csi/d.csi/other")
    found = await plugin.scan()
    assert (found.published, found.staged) == ((), ())
    assert {(each.path.name, each.reason) for each in found.unreadable} == {
        ("other", "its vol_data.json is another volume's")
    }


@pytest.mark.parametrize("content", [None, "nonsense", "[]", '{"driverName":"d.csi","volumeHandle":"\\ud800"}'])
async def test_what_is_unreadable_and_not_mounted_can_be_cleaned_away(
    plugin: VolumePlugin, content: str | None
) -> None:
    await stage(plugin)
    await publish(plugin)
    await stage(plugin, BLOCK)
    for file in plugin.layout.root.rglob("vol_data.json"):
        if content is None:
            file.unlink()
        else:
            file.write_text(content)
    found = await plugin.scan()
    assert [(each.pod_uid, each.name, each.driver, each.block) for each in found.unreadable] == [
        ("u1", "pv1", "", False),
        ("", "", "d.csi", False),
        ("", "pv2", "", True),
    ]
    for each in found.unreadable:
        assert await plugin.clean_leftovers(each)
    assert (await plugin.scan()).unreadable == ()
    assert not (plugin.layout.root / "pods/u1").exists()


async def test_what_is_left_as_it_is_is_said_once_and_not_remembered_when_it_is_gone(
    plugin: VolumePlugin, caplog: pytest.LogCaptureFixture
) -> None:
    folder = plugin.layout.root / TARGET
    for _ in range(2):
        folder.mkdir(parents=True)
        (folder / "precious").touch()
        for _ in range(3):
            (one,) = (await plugin.scan()).unreadable
            assert not await plugin.clean_leftovers(one)
        (folder / "precious").unlink()
        folder.rmdir()
        assert (await plugin.scan()).unreadable == ()
    assert len([text for text in caplog.messages if f"{folder} is left as it is" in text]) == 2


async def test_of_a_gone_pods_volume_that_cannot_be_cleaned_away_nothing_is_remembered(
    plugin: VolumePlugin, caplog: pytest.LogCaptureFixture
) -> None:
    folder = plugin.layout.root / TARGET
    folder.mkdir(parents=True)
    (folder / "precious").touch()
    assert not await plugin.clean_leftovers(PUBLISHED)
    assert len([text for text in caplog.messages if f"{folder} is left as it is" in text]) == 1
    assert not plugin._dirs._kept


@pytest.mark.parametrize(
    ("method", "step", "called"),
    [
        ("unmap", lambda plugin: plugin.unpublish(BLOCK_PUBLISHED), "Unpublish"),
        ("device", lambda plugin: plugin.expand(BLOCK, "u1", Inputs(), required_bytes=100), "Expand"),
    ],
    ids=["when it is unpublished", "when it is expanded"],
)
async def test_a_device_that_hangs_keeps_no_other_volume_waiting(
    plugin: VolumePlugin,
    driver: ScriptedDriver,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    step: Callable[[VolumePlugin], Awaitable[object]],
    called: str,
) -> None:
    """A dead device may not even say what it is, its last close may take for ever, and the loop's threads are few."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(max_workers=1))
    dead = threading.Event()
    monkeypatch.setattr(BlockDevices, method, lambda *_: str(dead.wait(5)))
    hanging = asyncio.ensure_future(step(plugin))
    await asyncio.sleep(0)
    await stage(plugin)
    assert (driver.methods, hanging.done()) == (["Stage"], False)
    dead.set()
    await hanging
    assert driver.methods == ["Stage", called]


async def test_a_device_that_cannot_be_unmapped_leaves_the_publication_uncertain(
    plugin: VolumePlugin, driver: ScriptedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(5, "the device is dead")

    monkeypatch.setattr(BlockDevices, "unmap", fail)
    error = await failed(plugin.unpublish(BLOCK_PUBLISHED))
    assert (type(error), error.why, driver.methods) == (Uncertain, "the device is dead", [])


async def test_the_files_of_a_volume_that_the_driver_has_deferred_to_the_runtime_are_given_to_nobody(
    tmp_path: Path, driver: ScriptedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Published] = []
    given: list[Path] = []

    async def is_deferred(published: Published) -> bool:
        asked.append(published)
        return len(asked) == 1

    async def give(target: Path, *_: object, **__: object) -> None:
        given.append(target)

    monkeypatch.setattr("edge.csi_volume_plugin.ownership.give", give)
    plugin = VolumePlugin(tmp_path / "root", "n1", {"d.csi": driver}.get, is_deferred=is_deferred)
    volume = replace(VOLUME, rules=DriverRules(fs_group_policy="File"))
    wanted = PodVolume(pod=replace(POD, fs_group=7), volume=volume, volume_name="data")
    await stage(plugin, volume)
    await publish(plugin, wanted)
    assert (asked, given) == ([PUBLISHED], [])
    await publish(plugin, wanted)
    assert len(given) == 1


# ---- unstaging what the mount table shows to be staged ---------------------------------------------------------------


@pytest.fixture
async def mounted_target(plugin: VolumePlugin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The staging directory of a volume, which is mounted, as far as the kernel's table tells."""
    await stage(plugin)
    found = plugin.layout.staging_target("d.csi", "vol-1")
    table = tmp_path / "mountinfo"
    table.write_text(f"36 35 0:50 / {found} rw - tmpfs tmpfs rw\n")
    monkeypatch.setattr(mounts, "MOUNTINFO", table)
    return found


async def test_a_mount_that_the_driver_does_not_want_to_know_of_any_more_is_not_forgotten(
    plugin: VolumePlugin, driver: ScriptedDriver, mounted_target: Path
) -> None:
    driver.capabilities = frozenset()
    with pytest.raises(NotReady, match="no capability STAGE_UNSTAGE_VOLUME"):
        await plugin.unstage(STAGED)
    assert (mounted_target.parent / "vol_data.json").exists()


async def test_a_mount_without_its_vol_data_is_unstaged_all_the_same(
    plugin: VolumePlugin, driver: ScriptedDriver, mounted_target: Path
) -> None:
    (mounted_target.parent / "vol_data.json").unlink()
    driver.meanwhile["NodeUnstageVolume"] = lambda _: mounts.MOUNTINFO.write_text("")
    await plugin.unstage(STAGED, recorded=False)
    assert driver.methods == ["Stage", "Unstage"]
    assert not mounted_target.parent.exists()
