"""Attack 11: a symbolic link below the root directory leads the agent or a driver to another place."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from edge.disk.mounts import read_table
from tests.kit import needs
from tests.kit.cluster_objects import claim, driver, pod, volume
from tests.kit.hostile_hub import attack

_DRIVER = "vendor.test"
_HANDLE = hashlib.sha256(b"h-pv").hexdigest()

FILE_SYSTEM = [
    "pods",
    "pods/u",
    "pods/u/volumes",
    "pods/u/volumes/kubernetes.io~csi",
    "pods/u/volumes/kubernetes.io~csi/pv",
    "plugins",
    "plugins/kubernetes.io",
    "plugins/kubernetes.io/csi",
    f"plugins/kubernetes.io/csi/{_DRIVER}",
    f"plugins/kubernetes.io/csi/{_DRIVER}/{_HANDLE}",
]
"""Each directory on the way to a file system's paths."""

BLOCK = [
    "plugins/kubernetes.io/csi/volumeDevices",
    "plugins/kubernetes.io/csi/volumeDevices/pv",
    "plugins/kubernetes.io/csi/volumeDevices/pv/data",
    "plugins/kubernetes.io/csi/volumeDevices/staging",
    "plugins/kubernetes.io/csi/volumeDevices/publish",
    "plugins/kubernetes.io/csi/volumeDevices/publish/pv",
]
"""Each further directory on the way to the paths that the driver gets for a block volume."""

TARGETS = {
    "pods/u/volumes/kubernetes.io~csi/pv/mount": False,
    f"plugins/kubernetes.io/csi/{_DRIVER}/{_HANDLE}/globalmount": False,
    "plugins/kubernetes.io/csi/volumeDevices/staging/pv": True,
    "plugins/kubernetes.io/csi/volumeDevices/publish/pv/u": True,
}
"""Each path that the driver gets, and whether it is a block volume's."""


def closure(*, block: bool = False) -> list[dict[str, Any]]:
    """Return the objects of a pod of uid u with the volume pv."""
    pv = volume("pv", claim="default/c", driver=_DRIVER, volumeMode="Block" if block else "Filesystem")
    pv["spec"]["claimRef"]["uid"] = "uid-of-c"
    web = pod("p", claims=("c",))
    web["metadata"]["uid"] = "u"
    (container,) = web["spec"]["containers"]
    if block:
        container["volumeDevices"] = container.pop("volumeMounts")
    rules = driver(_DRIVER, attachRequired=False)
    return [rules, claim("c", volume="pv", status={"phase": "Bound"}), pv, web]


@contextmanager
def planted(root: Path, place: str, outside: Path) -> Iterator[None]:
    """Put a symbolic link in the place of an entry; at the end, put the entry back."""
    path, moved = root / place, root / "moved"
    path.parent.mkdir(parents=True, exist_ok=True)
    if existed := path.exists():
        path.rename(moved)
    path.symlink_to(outside)
    yield
    path.unlink(missing_ok=True)
    if existed:
        moved.rename(path)


async def test_no_link_in_place_of_a_directory_leads_out_of_the_root_directory(short_dir: Path, tmp_path: Path) -> None:
    async with attack(short_dir, tmp_path) as attacked:
        for place in (*FILE_SYSTEM, *BLOCK):
            with planted(attacked.root, place, attacked.outside):
                attacked.hub.put(*closure(block=place in BLOCK))
                found = await attacked.volume("p")
                assert found["state"] != "published", place
                assert "a symbolic link" in found["error"], (place, found)
                assert attacked.left_outside() == ["file"], place
                through = [path for path in attacked.vendor.paths if path.startswith(f"{attacked.root}/{place}/")]
                assert through == [], "the driver got a path through the link"
            attacked.hub.clear()
            await attacked.nothing_left()
            attacked.vendor.forget_calls()


@needs.skip_without(needs.root(), needs.loop_devices())  # to give a pod its block device
@pytest.mark.parametrize(("place", "block"), TARGETS.items())
async def test_a_link_at_a_target_is_removed_before_the_driver_mounts(
    short_dir: Path, tmp_path: Path, place: str, block: bool
) -> None:
    async with attack(short_dir, tmp_path) as attacked:
        with planted(attacked.root, place, attacked.outside / "file" if place.endswith("/u") else attacked.outside):
            attacked.hub.put(*closure(block=block))
            await attacked.volume("p")
            assert f"{attacked.root}/{place}" in attacked.vendor.paths
            assert attacked.left_outside() == ["file"]
            assert (attacked.outside / "file").read_text() == "untouched"
            assert not (attacked.root / place).is_symlink()
            attacked.hub.clear()
            await attacked.nothing_left()


async def test_a_link_at_a_target_is_removed_before_the_driver_unmounts(short_dir: Path, tmp_path: Path) -> None:
    places = [place for place, block in TARGETS.items() if not block]
    seen: list[bool] = []
    async with attack(short_dir, tmp_path) as attacked:
        for method in ("NodeUnpublishVolume", "NodeUnstageVolume"):
            attacked.vendor.before(method, lambda path: seen.append(path.is_symlink()))
        attacked.hub.put(*closure())
        assert (await attacked.volume("p"))["state"] == "published"
        for number, place in enumerate(places):
            (attacked.root / place).rename(attacked.root / f"moved-{number}")
            (attacked.root / place).symlink_to(attacked.outside)
        attacked.hub.clear()
        await attacked.nothing_left()
        assert seen == [False, False]
        assert attacked.left_outside() == ["file"]


@needs.skip_without(needs.root(), needs.loop_devices())
async def test_no_link_leads_the_binding_of_a_block_device_out_of_the_root_directory(
    short_dir: Path, tmp_path: Path
) -> None:
    place = "plugins/kubernetes.io/csi/volumeDevices/pv/dev/u"
    async with attack(short_dir, tmp_path) as attacked:
        with planted(attacked.root, place, attacked.outside / "file"):
            attacked.hub.put(*closure(block=True))
            found = await attacked.volume("p")
            assert "a symbolic link" in found["error"]
            assert read_table(attacked.outside).within(attacked.outside) == []
        assert (attacked.outside / "file").read_text() == "untouched"
