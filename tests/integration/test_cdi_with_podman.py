"""CDI files with a real container engine: Podman gives its runtime what a file says.

The runtime is a script that keeps the bundle's config.json and fails: no container starts. Podman sees a /run of its
own, so that no file of this machine changes.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from edge.direct.cdi import CdiFiles, DeviceNode, TypedMount
from tests.support import needs

if TYPE_CHECKING:
    from pathlib import Path

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


class Engine:
    """Podman with directories of a test."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.files = CdiFiles(home / "cdi")
        self.volume = home / "volume"
        self._runtime, self._kept, self._rootfs = home / "runtime", home / "config.json", home / "rootfs"
        for folder in (self.files.root, self.volume, self._rootfs):
            folder.mkdir()
        self._runtime.write_text(_RUNTIME.format(kept=self._kept))
        self._runtime.chmod(0o755)

    def run(self, *flags: str) -> dict[str, Any]:
        """Run a container; returns its OCI configuration, empty if Podman does not get so far."""
        self._kept.unlink(missing_ok=True)
        words = [
            *("--cgroup-manager=cgroupfs", "--storage-driver=vfs", f"--runtime={self._runtime}"),
            *(f"--root={self.home / 'root'}", f"--runroot={self.home / 'runroot'}", f"--tmpdir={self.home / 'tmp'}"),
            *("run", "--rm", "--network=none", *flags, "-v", f"{self.volume}:/data", "--rootfs", str(self._rootfs)),
        ]
        script = ["sh", "-c", _IN_ITS_OWN_RUN, "sh", str(self.files.root), *words, "/bin/sh"]
        # In a process namespace of its own, what Podman leaves running ends with it.
        command = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", *script]
        self.said = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False).stderr
        return json.loads(self._kept.read_text()) if self._kept.exists() else {}


@pytest.fixture
def engine(short_dir: Path) -> Engine:
    return Engine(short_dir)  # Podman takes no --runroot of more than 50 characters


def mounts_at(config: dict[str, Any], place: str) -> list[dict[str, Any]]:
    return [mount for mount in config["mounts"] if mount["destination"] == place]


def test_a_container_with_the_device_has_one_typed_mount_and_one_without_has_a_bind(engine: Engine) -> None:
    mount = TypedMount(container="app", host_path=str(engine.volume), container_path="/data", read_only=True)
    [name] = engine.files.add("pod", "data", [mount])
    [with_device] = mounts_at(engine.run("--device", name), "/data")
    [without] = mounts_at(engine.run(), "/data")
    assert with_device == {
        "destination": "/data",
        "type": "directvol",
        "source": str(engine.volume),
        "options": ["ro"],
    }
    assert without["type"] == "bind"


def test_a_container_whose_device_is_not_known_does_not_start(engine: Engine) -> None:
    mount = TypedMount(container="app", host_path=str(engine.volume), container_path="/data")
    [name] = engine.files.add("pod", "data", [mount])
    engine.files.remove("pod", "data")
    assert engine.run("--device", name) == {}
    assert name in engine.said


def test_a_device_node_is_that_of_the_host(engine: Engine) -> None:
    device = DeviceNode(container="app", host_path="/dev/null", container_path="/dev/x")
    [name] = engine.files.add("pod", "data", [device])
    config = engine.run("--device", name)
    [node] = [device for device in config["linux"]["devices"] if device["path"] == "/dev/x"]
    assert (node["type"], node["major"], node["minor"]) == ("c", 1, 3)
