"""Every path of a volume below the kubelet's root directory (docs/csi-contract.md#the-kubelets-directories).

Rules:

* Each name is checked before it becomes part of a path: no name can lead out of its directory.
* Vendors' drivers know these paths. They are the kubelet's to the letter, and symbolic links in them are not resolved.
"""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from edge.volume_errors import NotReady

PLUGIN = "kubernetes.io~csi"  # the CSI plugin's name as a directory: `kubernetes.io/csi` with `/` escaped

VOL_DATA = "vol_data.json"

LONGEST_NAME_BYTES = 255  # NAME_MAX of every Linux file system that may hold a root directory

_DIRECT = "directVolumes"  # the directory of `Layout.beside_kubelet`

# Names beside the drivers' staging directories: block volumes, and stagings of kubelets before 1.24.
NO_DRIVERS = frozenset({"volumeDevices", "pv", _DIRECT})

_BLOCK_OWN = frozenset({"staging", "publish"})  # names beside the directories of single block volumes


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths below one root directory: `/var/lib/kubelet`, or the value of `--root-dir`."""

    root: Path

    @property
    def real(self) -> "Layout":
        """The same paths without symbolic links in the root's own."""
        return Layout(Path(os.path.realpath(self.root)))

    @property
    def pods(self) -> Path:
        return self.root / "pods"

    @property
    def staging_root(self) -> Path:
        return self.root / "plugins" / "kubernetes.io" / "csi"

    @property
    def block_root(self) -> Path:
        return self.staging_root / "volumeDevices"

    @property
    def beside_kubelet(self) -> Path:
        """The agent's own root directory beside a kubelet, for block volumes of which the kubelet knows nothing."""
        # Drivers' containers share this part of the kubelet's directory. Not the kubelet's own places for block
        # volumes: a kubelet that restarts would take these volumes for its own, and unmap them.
        return self.staging_root / _DIRECT

    def pod(self, uid: str) -> Path:
        return self.pods / component("the pod's uid", uid)

    def volume_dir(self, pod_uid: str, name: str) -> Path:
        """A pod's directory of one volume: the target's parent, which holds vol_data.json."""
        return self.pod(pod_uid) / "volumes" / PLUGIN / _volume(name)

    def target(self, pod_uid: str, name: str) -> Path:
        """A file system's `target_path`, which the driver makes."""
        return self.volume_dir(pod_uid, name) / "mount"

    def staging_dir(self, driver: str, handle: str) -> Path:
        """The directory of a file system's staging, which holds vol_data.json."""
        if not handle:
            raise NotReady("the volume has an empty volumeHandle; correct its PersistentVolume")
        if driver in NO_DRIVERS:  # a scan would not see the staging
            raise NotReady(
                f"a driver cannot be called {driver}, because a directory of the kubelet has that name: rename the "
                f"driver"
            )
        return self.staging_root / component("the driver's name", driver) / handle_hash(handle)

    def staging_target(self, driver: str, handle: str) -> Path:
        """A file system's `staging_target_path`."""
        return self.staging_dir(driver, handle) / "globalmount"

    def block_dir(self, name: str) -> Path:
        """The directory of a block volume, with `data` and `dev` in it."""
        folder = _volume(name)
        if folder in _BLOCK_OWN:
            raise NotReady(f"a block volume cannot be called {folder}: give its PersistentVolume another name")
        return self.block_root / folder

    def block_data(self, name: str) -> Path:
        return self.block_dir(name) / "data"

    def device_maps(self, name: str) -> Path:
        """The directory in which a block volume's device is bound to one file for each pod."""
        return self.block_dir(name) / "dev"

    def device_map(self, name: str, pod_uid: str) -> Path:
        return self.device_maps(name) / component("the pod's uid", pod_uid)

    def block_staging(self, name: str) -> Path:
        """A block volume's `staging_target_path`: a directory."""
        return self.block_root / "staging" / self.block_dir(name).name

    def block_targets(self, name: str) -> Path:
        return self.block_root / "publish" / self.block_dir(name).name

    def block_target(self, name: str, pod_uid: str) -> Path:
        """A block volume's `target_path`: a file, which the driver makes."""
        return self.block_targets(name) / component("the pod's uid", pod_uid)

    def device_link(self, pod_uid: str, name: str) -> Path:
        """The symbolic link in a pod's directory that leads to its block device."""
        return self.pod(pod_uid) / "volumeDevices" / PLUGIN / _volume(name)


def handle_hash(handle: str) -> str:
    """Return the directory name for a volumeHandle, which may contain any character."""
    return hashlib.sha256(handle.encode()).hexdigest()


def escaped(name: str) -> str:
    """Return a name as a directory name: the kubelet writes `~` for `/`."""
    return name.replace("/", "~")


def component(what: str, name: str) -> str:
    """Return `name` if it can be one component of a path, else raise NotReady."""
    if not name:
        raise NotReady(f"{what} is empty")
    if name in {".", ".."} or "/" in name or "\0" in name:
        raise NotReady(f"{what} is {shown(name)}, which cannot name a directory")
    size = len(name.encode("utf-8", "surrogateescape"))
    if size > LONGEST_NAME_BYTES:
        raise NotReady(f"{what} has {size} bytes ({shown(name)}); a directory's name has at most {LONGEST_NAME_BYTES}")
    return name


def shown(name: str) -> str:
    return ascii(name if len(name) <= 40 else name[:40] + "…")


def _volume(name: str) -> str:
    return component("the volume's name", escaped(name))
