"""CDI files with a real container engine: Podman gives its runtime what a file says.

The runtime is a script that keeps the bundle's config.json and fails: no container starts. Podman sees a /run of its
own, so that no file of this machine changes.
"""

import json
import os
import shutil
import stat
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edge.disk.cdi import CdiFiles
from edge.disk.found_volumes import Published
from edge.disk.layout import Layout
from edge.volumes import ContainerUse, Deferral, Pod, PodVolume, Volume
from tests.kit import needs

pytestmark = [
    pytest.mark.skipif(bool(needs.root()), reason=needs.root()),
    pytest.mark.skipif(shutil.which("podman") is None, reason=needs.PODMAN),
]

_IN_ITS_OWN_RUN = """
mount -t tmpfs tmpfs /run && mkdir /run/cdi && mount --bind "$1" /run/cdi && shift && podman "$@"
"""

_RUNTIME = """#!/bin/sh
before=
for word; do [ "$before" = --bundle ] && cp "$word/config.json" {kept}; before=$word; done
exit 1
"""


RAW = PodVolume(
    pod=Pod(uid="pod", namespace="ns", name="web"),
    volume=Volume(driver="d.csi", handle="h", name="pv-1", block=True),
    volume_name="data",
    uses=(ContainerUse("app", "/dev/x"),),
)
DEFERRED = replace(
    RAW,
    deferral=Deferral(runtime="kata, rs", flavour="rs", fs_type="ext4"),
    uses=(ContainerUse("app", "/data", read_only=True),),
)


class Engine:
    """Podman with directories of a test."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.layout = Layout(home / "kubelet")
        self.files = CdiFiles(home / "cdi", self.layout)  # the CDI files that it reads
        self.volume = self.layout.target("pod", "pv-1")  # the path of the deferred volume
        self._runtime, self._kept, self._rootfs = home / "runtime", home / "config.json", home / "rootfs"
        for folder in (home / "cdi", self.volume, self._rootfs):
            folder.mkdir(parents=True)
        self._runtime.write_text(_RUNTIME.format(kept=self._kept))
        self._runtime.chmod(0o755)

    def run(self, *flags: str) -> dict[str, Any]:
        """Run a container; returns its OCI configuration, empty if Podman does not get so far."""
        self._kept.unlink(missing_ok=True)
        words = [
            *("--cgroup-manager=cgroupfs", "--storage-driver=vfs", f"--runtime={self._runtime}"),
            *(f"--root={self.home / 'root'}", f"--runroot={self.home / 'runroot'}", f"--tmpdir={self.home / 'tmp'}"),
            *("run", "--rm", "--network=none", *flags, "--rootfs", str(self._rootfs)),
        ]
        script = ["sh", "-c", _IN_ITS_OWN_RUN, "sh", str(self.home / "cdi"), *words, "/bin/sh"]
        # In a process namespace of its own, what Podman leaves running ends with it.
        command = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", *script]
        self.said = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False).stderr
        return json.loads(self._kept.read_text()) if self._kept.exists() else {}

    def mounts(self, *flags: str) -> list[dict[str, Any]]:
        """Return the mounts at /data of a container with these flags."""
        return [mount for mount in self.run(*flags)["mounts"] if mount["destination"] == "/data"]


@pytest.fixture
def engine(short_dir: Path) -> Engine:
    return Engine(short_dir)  # Podman takes no --runroot of more than 50 characters


async def test_a_container_with_the_device_has_one_typed_mount_and_one_without_has_a_bind(engine: Engine) -> None:
    await engine.files.add(DEFERRED)
    [device] = engine.files.devices(DEFERRED)
    by_hand = ("-v", f"{engine.volume}:/data")
    typed = {"destination": "/data", "type": "directvol", "source": str(engine.volume), "options": ["rbind", "ro"]}
    assert engine.mounts("--device", device["name"]) == [typed]
    assert engine.mounts("--device", device["name"], *by_hand) == [typed]
    [without] = engine.mounts(*by_hand)
    assert without["type"] == "bind"


async def test_a_container_whose_device_is_not_known_does_not_start(engine: Engine) -> None:
    await engine.files.add(DEFERRED)
    [device] = engine.files.devices(DEFERRED)
    await engine.files.remove(Published(driver="d.csi", handle="h", name="pv-1", pod_uid="pod", block=True))
    assert engine.run("--device", device["name"]) == {}
    assert device["name"] in engine.said


async def test_a_device_node_is_that_of_the_host(engine: Engine) -> None:
    node = engine.layout.device_map("pv-1", "pod")
    node.parent.mkdir(parents=True)
    os.mknod(node, 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    await engine.files.add(RAW)
    [device] = engine.files.devices(RAW)
    config = engine.run("--device", device["name"])
    [given] = [each for each in config["linux"]["devices"] if each["path"] == "/dev/x"]
    assert (given["type"], given["major"], given["minor"]) == ("c", 1, 3)
