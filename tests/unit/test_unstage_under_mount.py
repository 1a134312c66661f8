"""Unstaging a volume that the mount table shows to be staged, whatever else speaks against it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from edge.csi_volume_plugin import Staged, VolumePlugin
from edge.disk import mounts
from edge.volume_errors import NotReady
from edge.volumes import Volume
from tests.kit.node_driver import ScriptedDriver

if TYPE_CHECKING:
    from pathlib import Path

VOLUME = Volume(driver="d.csi", handle="vol-1", name="pv1")
STAGED = Staged(driver="d.csi", handle="vol-1", name="pv1")


@pytest.fixture
def driver() -> ScriptedDriver:
    return ScriptedDriver()


@pytest.fixture
def plugin(tmp_path: Path, driver: ScriptedDriver) -> VolumePlugin:
    return VolumePlugin(tmp_path / "root", "n1", {"d.csi": driver}.get)


@pytest.fixture
async def target(plugin: VolumePlugin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The staging directory of a volume, which is mounted, as far as the kernel's table tells."""
    await plugin.stage(VOLUME, publish_context={}, secrets={})
    found = plugin.layout.staging_target("d.csi", "vol-1")
    table = tmp_path / "mountinfo"
    table.write_text(f"36 35 0:50 / {found} rw - tmpfs tmpfs rw\n")
    monkeypatch.setattr(mounts, "MOUNTINFO", table)
    return found


async def test_a_mount_that_the_driver_does_not_want_to_know_of_any_more_is_not_forgotten(
    plugin: VolumePlugin, driver: ScriptedDriver, target: Path
) -> None:
    driver.capabilities = frozenset()
    with pytest.raises(NotReady, match="no capability STAGE_UNSTAGE_VOLUME"):
        await plugin.unstage(STAGED)
    assert (target.parent / "vol_data.json").exists()


async def test_a_mount_without_its_vol_data_is_unstaged_all_the_same(
    plugin: VolumePlugin, driver: ScriptedDriver, target: Path
) -> None:
    (target.parent / "vol_data.json").unlink()
    driver.meanwhile["NodeUnstageVolume"] = lambda _: mounts.MOUNTINFO.write_text("")
    await plugin.unstage(STAGED, recorded=False)
    assert driver.methods == ["Stage", "Unstage"]
    assert not target.parent.exists()
