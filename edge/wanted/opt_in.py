"""The opt-in to deferral: decides whether a pod's runtime mounts a volume, and refuses what cannot be done.

Rules (CSI pull request 526, KEP-2857):

* A volume is deferred if it is asked for, by the pod or by the volume's own attributes. Then all conditions must hold.
  If one does not, the pod does not get the volume, and learns why. There is no silent way back to an ordinary mount.
* A volume that nobody asks to defer takes the ordinary way. Nothing here is then looked at.
* The decision needs no driver and no file: it is a function of Kubernetes' objects and of the agent's flags.
"""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from common.csi.volume_context import DIRECT_VOLUME
from edge.calls import node_requests
from edge.disk.layout import Layout
from edge.disk.runtimes import DirectRuntime
from edge.volume_errors import VolumeError
from edge.volumes import Deferral, PodVolume, VolumeKey

# On a pod: the names of its volumes to defer, with commas between them. On a CSIDriver: `true` allows it.
ANNOTATION = "csi-bridge.io/direct-volumes"

_DEFAULT_FS_TYPE = "ext4"  # the file system of a volume whose PV names none, as of most drivers

# A runtime names a volume by the base64 of its path, which then has 252 characters; a file's name has 255 (NAME_MAX).
_LONGEST_PATH_BYTES = 189

_BINDS = frozenset({"bind", "rbind"})
# Mount options that look like one: everybody who may read the mount info would see it.
_SECRET = re.compile(r"pass|secret|token|cred|key", re.IGNORECASE)

_SHARED = frozenset({"ReadWriteMany", "ReadOnlyMany"})


class NotDeferrable(Exception):
    """A volume that is to be deferred and cannot be; `str()` is the reason. `key` is the volume's, if it is known."""

    def __init__(self, why: str, key: VolumeKey | None = None) -> None:
        self.key = key
        super().__init__(why)


@dataclass(frozen=True, slots=True)
class OptIn:
    """The agent's part of the decision."""

    runtimes: Mapping[str, DirectRuntime]
    layout: Layout  # the paths below the root directory without symbolic links: a runtime sees these paths

    def decide(self, want: PodVolume, *, allowed: bool, sub_path: bool) -> PodVolume:
        """Return an asked volume as it is deferred: for the driver it is a block volume.

        `allowed`: the CSIDriver object has the annotation. `sub_path`: a container mounts a part of the volume.
        """
        volume = want.volume
        runtime = self._runtime(want.pod.runtime_class)
        _require(allowed or is_true(volume.attributes.get(DIRECT_VOLUME)),
                 f'its CSIDriver object has no annotation {ANNOTATION}: "true"')  # fmt: skip
        _require(not volume.ephemeral, "it is an inline volume, which has no block device")
        _require(not volume.block, "its volumeMode is Block; only a Filesystem has something to mount")
        _require(not sub_path, "a container uses a subPath of it, which such a runtime cannot mount")
        _require(_SHARED.isdisjoint(volume.access_modes),
                 "several nodes may use it at once, and two guests would destroy its file system")  # fmt: skip
        _require(volume.publish_secret is None and not volume.rules.token_audiences,
                 "its driver gets secrets when it publishes, and those end at the host")  # fmt: skip
        fs_type = volume.fs_type or _DEFAULT_FS_TYPE
        mounts = ", ".join(runtime.fs_types)
        _require(
            fs_type in runtime.fs_types, f"its file system is {fs_type}, and runtime {runtime.name} mounts {mounts}"
        )
        _check_options(volume.mount_options)
        _require(runtime.applies_options or not (volume.mount_options or want.read_only),
                 f"runtime {runtime.shown} {runtime.version} ignores mount options and read-only claims")  # fmt: skip
        self._check_path(want)
        group = self._fs_group(want, fs_type)
        _require(group is None or runtime.applies_fs_group,
                 f"the pod has an fsGroup, which runtime {runtime.shown} does not apply")  # fmt: skip
        deferral = Deferral(runtime=runtime.shown, flavour=runtime.flavour, fs_type=fs_type, fs_group=group)
        return replace(want, volume=replace(volume, block=True), deferral=deferral, selinux_context="")

    def _runtime(self, name: str) -> DirectRuntime:
        _require(bool(name), "the pod has no runtimeClassName")
        found = self.runtimes.get(name)
        if found is None:
            raise NotDeferrable(f"the agent was not started with --direct-runtime={name}=…, the pod's runtimeClassName")
        return found

    def _check_path(self, want: PodVolume) -> None:
        try:
            path = str(self.layout.target(want.pod.uid, want.volume.name))
        except VolumeError as error:
            raise NotDeferrable(str(error)) from error
        size = len(os.fsencode(path))
        _require(size <= _LONGEST_PATH_BYTES,
                 f"{path!r} cannot be the path of a direct volume: it is {size} bytes long, and the runtime's name for "
                 f"it allows {_LONGEST_PATH_BYTES} at most; use a shorter --root-dir or a shorter name of the volume",
                 )  # fmt: skip

    @staticmethod
    def _fs_group(want: PodVolume, fs_type: str) -> int | None:
        # The driver's own way (a mount) is not taken.
        mounted = replace(want, volume=replace(want.volume, fs_type=fs_type))
        if not node_requests.wants_fs_group(mounted, frozenset()):
            return None
        _require(want.pod.fs_group != 0, "the pod's fsGroup is 0, which the runtimes take for none")
        return want.pod.fs_group


def asked_names(annotations: Mapping[str, Any] | None) -> frozenset[str]:
    named = str((annotations or {}).get(ANNOTATION) or "")
    return frozenset(filter(None, (name.strip() for name in named.split(","))))


def is_true(text: object) -> bool:
    return str(text).lower() == "true"


def _check_options(options: Iterable[str]) -> None:
    for option in options:
        _require(option not in _BINDS, f"its mount option {option} has no meaning in a guest")
        _require(_SECRET.search(option) is None, "one of its mount options looks like a secret")


def _require(holds: bool, why_not: str) -> None:  # noqa: FBT001  # it reads as a sentence
    if not holds:
        raise NotDeferrable(why_not)
