"""A CDI file: lets a container engine give a pod's containers one volume, by names (Container Device Interface).

    <root>/csi-bridge.io-volume_<pod uid>-<hash of the volume's name>.json     one volume of one pod

Whoever starts the containers asks the engine for each device by its name: `ctr run --device NAME`. The file says the
rest, as the pod's spec has it: the place in the container, and whether it may only be read.

* A raw block volume is a device node.
* A volume that the pod's runtime mounts is a mount of the type that this runtime looks at. Kata's Go runtime handles
  `bind` alone. runtime-rs takes `directvol`, too, and its container then fails if the volume is no longer told to the
  runtime. With `bind` it would get the empty guard.

Rules:

* A file declares the lowest version that it needs: older engines refuse newer numbers.
* A device's name is a letter and a hash. The letter is for version 0.4.0, which allows no digit there.
* The file is written after the volume is ready, and removed before it is taken back.
* The directory is for generated files, and does not survive a reboot.

Source: CDI's specification and its specs-go/version.go.
"""

import hashlib
import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from common.pages.agent import ContainerDevice
from common.store.fault_points import reach
from common.store.files import NEW, replace_file
from edge.disk.found_volumes import Published
from edge.disk.layout import Layout
from edge.disk.own_thread import in_own_thread
from edge.disk.runtimes import DIRECT
from edge.volume_errors import as_uncertain
from edge.volumes import ContainerUse, PodVolume

log = logging.getLogger("csi_bridge.edge.volumes")

_VENDOR = "csi-bridge.io"
_CLASS = "volume"
_KIND = f"{_VENDOR}/{_CLASS}"
_PREFIX = f"{_VENDOR}-{_CLASS}_"  # CDI's form of a transient file's name

# They brought the type of a mount, and a device node with another path on the host.
_MOUNT_VERSION = "0.4.0"
_NODE_VERSION = "0.5.0"

# Engines may run as other users. A file has only paths.
_DIR_MODE = 0o755
_FILE_MODE = 0o644


class CdiFiles:
    """The CDI files of this agent, in the engines' directory `root` (None: no files), with paths without links."""

    def __init__(self, root: Path | None, layout: Layout) -> None:
        self._root = root
        self._layout = layout

    def devices(self, want: PodVolume) -> list[ContainerDevice]:
        """Return the volume of each container as an engine knows it. It compares the path, letter by letter."""
        if self._root is None:
            return []
        return [
            ContainerDevice(container=use.container, path=use.path, name=f"{_KIND}={_device_name(want.pod.uid, use)}")
            for use in want.uses
        ]

    async def add(self, want: PodVolume) -> None:
        """Write the file of a pod's volume, if CDI can say how it is used. Raises Uncertain; the old file stays."""
        if self._root is not None and want.uses:
            path = self._path(self._root, want.pod.uid, want.volume.name)
            content = json.dumps(self._content(want)).encode()
            with as_uncertain(f"write {path}"):
                await in_own_thread(lambda: _write(path, content), name="CDI file")
            reach("publish.after-cdi")

    async def remove(self, published: Published) -> None:
        """Remove the file of a pod's volume, if there is one. Raises Uncertain if it cannot be removed."""
        if self._root is not None and published.block:
            path = self._path(self._root, published.pod_uid, published.name)
            with as_uncertain(f"remove {path}"):
                await in_own_thread(lambda: path.unlink(missing_ok=True), name="CDI file")
            reach("unpublish.after-cdi")

    def has(self, published: Published) -> bool:
        # Without files, or with a volume that has none, nothing is missing.
        if self._root is None or not published.block:
            return True
        return self._path(self._root, published.pod_uid, published.name).exists()

    async def sweep(self, kept: Iterable[Published]) -> None:
        """Remove all files of this agent but those of some volumes, when the agent starts. Raises Uncertain."""
        if (root := self._root) is not None:
            paths = frozenset(self._path(root, one.pod_uid, one.name) for one in kept)
            with as_uncertain(f"clean {root}"):
                await in_own_thread(lambda: _sweep(root, paths), name="CDI files")

    def _content(self, want: PodVolume) -> dict[str, Any]:
        return {
            "cdiVersion": _NODE_VERSION if want.deferral is None else _MOUNT_VERSION,
            "kind": _KIND,
            "devices": [
                {"name": _device_name(want.pod.uid, use), "containerEdits": self._edits(want, use)} for use in want.uses
            ],
        }

    def _edits(self, want: PodVolume, use: ContainerUse) -> dict[str, Any]:
        # A mount has `rbind`, because runtime-rs before 4.0 mounts in the container with these options alone. A device
        # node has no number: the engine looks it up.
        name = want.volume.name
        uid = want.pod.uid
        reads_only = want.read_only or use.read_only
        if want.deferral is None:
            place = self._layout.device_map(name, uid)
            node = {"path": use.path, "hostPath": str(place), "permissions": "r" if reads_only else "rw"}
            return {"deviceNodes": [node]}
        mount = {
            "hostPath": str(self._layout.target(uid, name)),
            "containerPath": use.path,
            "type": DIRECT if want.deferral.flavour == "rs" else "bind",
            "options": ["rbind", "ro" if reads_only else "rw"],
        }
        return {"mounts": [mount]}

    @staticmethod
    def _path(root: Path, pod_uid: str, name: str) -> Path:
        return root / f"{_PREFIX}{pod_uid.replace('/', '_')}-{_hash(name)}.json"


def _device_name(pod_uid: str, use: ContainerUse) -> str:
    return f"v{_hash(pod_uid, use.container, use.path)}"


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _write(path: Path, content: bytes) -> None:
    if not path.parent.is_dir():
        path.parent.mkdir(_DIR_MODE, parents=True, exist_ok=True)
    replace_file(path, content, durable=False, mode=_FILE_MODE)


def _sweep(root: Path, kept: frozenset[Path]) -> None:
    for path in root.glob(f"{_PREFIX}*.json*"):
        if path not in kept and path.name.endswith((".json", f".json{NEW}")):
            log.warning("CDI file %s is removed: no pod's volume accounts for it", path)
            path.unlink(missing_ok=True)
