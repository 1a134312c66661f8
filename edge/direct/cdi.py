"""A CDI file: tells a container engine to give a container a typed mount or a device (Container Device Interface).

    <root>/csi-bridge.io-direct_<pod uid>-<hash of the volume's name>.json     one volume of one pod

Two uses, both only if asked for:

* runtime-rs 3.2 takes a direct volume only from a mount of type `directvol`, and the engine writes `bind`. An engine
  that gets the device of a `TypedMount` replaces its own mount at this place. Kata's Go runtime handles `bind` alone,
  so it must not get one. runtime-rs from 3.3 on needs none.
* A `DeviceNode` gives a container a block device under any runtime.

Rules:

* Somebody must ask the engine for each device by its qualified name: in the container's CDIDevices, or in an annotation
  `cdi.k8s.io/…`. The engine does not start a container whose device it does not know.
* A file declares the lowest version that it needs: older engines refuse newer numbers.
* A device's name is a letter and a hash. The letter is for version 0.4.0, which allows no digit there.
* The directory is for generated files, and does not survive a reboot.

Source: CDI's specification and its specs-go/version.go.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.files import NEW, replace_file
from edge.direct.errors import StoreFailed
from edge.direct.mount_info import DIRECT

if TYPE_CHECKING:
    from collections.abc import Iterator

GENERATED = Path("/var/run/cdi")
"""Where engines look for files that programs write. /etc/cdi is for people."""

_VENDOR, _CLASS = "csi-bridge.io", "direct"
_KIND = f"{_VENDOR}/{_CLASS}"
_PREFIX = f"{_VENDOR}-{_CLASS}_"
"""CDI's form of a transient file's name."""

_DIR_MODE = 0o755
_FILE_MODE = 0o644
"""Engines may run as other users. A file has only paths."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedMount:
    """A mount of type `directvol` in one container.

    Attributes:
        container: the container's name in its pod.
        host_path: the volume path, as in the direct volume's key.
        container_path: the `mountPath` of the pod's spec, letter by letter: the engine compares it.
    """

    container: str
    host_path: str
    container_path: str
    read_only: bool = False

    @property
    def version(self) -> tuple[int, int, int]:
        """The first version that has everything in it: 0.4.0 brought the type of a mount."""
        return 0, 4, 0

    def edits(self) -> dict[str, Any]:
        """Return its `containerEdits`. No `rbind`: in a user namespace the engine would add `idmap` to it."""
        return {
            "mounts": [
                {
                    "hostPath": self.host_path,
                    "containerPath": self.container_path,
                    "type": DIRECT,
                    "options": ["ro" if self.read_only else "rw"],
                }
            ]
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNode:
    """A device in one container.

    Attributes:
        container: the container's name in its pod.
        host_path: the device on the host.
        container_path: the `devicePath` of the pod's spec.
    """

    container: str
    host_path: str
    container_path: str
    read_only: bool = False

    @property
    def version(self) -> tuple[int, int, int]:
        """The first version that has everything in it: 0.5.0 brought another path on the host."""
        return (0, 3, 0) if self.host_path == self.container_path else (0, 5, 0)

    def edits(self) -> dict[str, Any]:
        """Return its `containerEdits`. The engine looks up the device's number."""
        node = {"path": self.container_path}
        if self.host_path != self.container_path:
            node["hostPath"] = self.host_path
        return {"deviceNodes": [{**node, "permissions": "r" if self.read_only else "rw"}]}


Device = TypedMount | DeviceNode


class CdiFiles:
    """The CDI files of this agent. Methods block for a moment only: the directory is in memory."""

    def __init__(self, root: Path = GENERATED) -> None:
        """Read and make nothing yet."""
        self.root = root

    def add(self, pod_uid: str, volume: str, devices: Sequence[Device]) -> tuple[str, ...]:
        """Write or replace the file of a pod's volume.

        Args:
            pod_uid: the pod's uid.
            volume: the volume's name in the pod's `spec.volumes`.
            devices: one for each container that uses the volume; at least one.

        Returns:
            The qualified names in the order of `devices`, each for its container.

        Raises:
            StoreFailed: it cannot be written; the former state stays.
        """
        names = [_device_name(pod_uid, device) for device in devices]
        content = {
            "cdiVersion": ".".join(map(str, max(device.version for device in devices))),
            "kind": _KIND,
            "devices": [
                {"name": name, "containerEdits": device.edits()} for name, device in zip(names, devices, strict=True)
            ],
        }
        path = self.root / _file_name(pod_uid, volume)
        with _told(f"write {path}"):
            if not self.root.is_dir():
                self.root.mkdir(_DIR_MODE, parents=True, exist_ok=True)
            replace_file(path, json.dumps(content, ensure_ascii=False).encode(), durable=False, mode=_FILE_MODE)
        return tuple(f"{_KIND}={name}" for name in names)

    def remove(self, pod_uid: str, volume: str) -> None:
        """Remove the file of a pod's volume, if there is one.

        Raises:
            StoreFailed: it cannot be removed.
        """
        path = self.root / _file_name(pod_uid, volume)
        with _told(f"remove {path}"):
            path.unlink(missing_ok=True)

    def sweep(self, keep: Iterable[tuple[str, str]]) -> None:
        """Remove all files of this agent but those of some volumes. Call it once, when the agent starts.

        Args:
            keep: pod uids and volume names, as given to `add`.

        Raises:
            StoreFailed: a file cannot be removed.
        """
        kept = {_file_name(*one) for one in keep}
        with _told(f"clean {self.root}"):
            for path in self.root.glob(f"{_PREFIX}*.json*"):
                if path.name not in kept and path.name.endswith((".json", f".json{NEW}")):
                    path.unlink(missing_ok=True)


def _device_name(pod_uid: str, device: Device) -> str:
    return f"v{_hash(pod_uid, device.container, device.container_path)}"


def _file_name(pod_uid: str, volume: str) -> str:
    return f"{_PREFIX}{pod_uid.replace('/', '_')}-{_hash(volume)}.json"


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


@contextmanager
def _told(what: str) -> "Iterator[None]":
    try:
        yield
    except OSError as error:
        raise StoreFailed(what, error) from error
