"""A mount info: what a runtime needs to mount one direct volume in its guest.

The JSON is that of Kata's Go package (src/runtime/pkg/direct-volume), byte for byte. runtime-rs reads the same keys
since Kata 3.3.0. Two rules keep one file good for both runtimes:

* `volume-type` is `directvol`, for a block device and for a disk image. The Go runtime does not read it, and runtime-rs
  refuses other words.
* `bind` is no mount option: the Go runtime would pass it to the guest's mount.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from edge.disk.volume_data import encode_struct
from edge.runtimes import DIRECT
from edge.volume_errors import Uncertain

FS_GROUP = "fsGroup"
"""A metadata key: the gid, in decimal digits. The Go runtime's guest gives the volume's files to it."""

FS_GROUP_POLICY = "fsGroupChangePolicy"
"""A metadata key: `Always` or `OnRootMismatch`. It counts only beside `FS_GROUP`."""

_OLDER = {"volume-type": "volume_type", "fstype": "fs_type"}
"""The keys of runtime-rs until 3.2."""


class MountInfoBroken(Uncertain):
    """A `mountInfo.json` that the runtimes cannot read."""

    def __init__(self, why: str) -> None:
        super().__init__(f"the mount info cannot be used: {why}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MountInfo:
    """The content of a mountInfo.json."""

    device: str  # the path of a block device, or of a disk image, on the host
    fs_type: str  # the file system in it, as the guest's mount(8) calls it
    options: tuple[str, ...] = ()  # mount options in the guest. `ro` also makes the device read-only.
    # `FS_GROUP` and `FS_GROUP_POLICY`. It never holds a secret: everybody who may read the file sees it.
    metadata: Mapping[str, str] = field(default_factory=dict)
    volume_type: str = DIRECT

    def encode(self) -> bytes:
        """Return the file: keys in the order of Kata's struct, sorted metadata, no spaces, no newline at the end."""
        whole: dict[str, Any] = {"volume-type": self.volume_type, "device": self.device, "fstype": self.fs_type}
        if self.metadata:
            whole["metadata"] = dict(sorted(self.metadata.items()))
        if self.options:
            whole["options"] = list(self.options)
        try:
            return encode_struct(whole)
        except UnicodeEncodeError:
            raise MountInfoBroken("a value is not Unicode text") from None

    @classmethod
    def parse(cls, raw: bytes) -> Self:
        """Read a file that an agent, a driver or one of Kata's tools wrote. Unknown keys are ignored, as by Kata."""
        try:
            found = json.loads(raw)
        except (ValueError, RecursionError):
            raise MountInfoBroken("it is not JSON") from None
        if not isinstance(found, dict):
            raise MountInfoBroken("it is not a JSON object")
        found = {key: value for key, value in found.items() if value is not None}  # as for Go
        metadata, options = found.get("metadata", {}), found.get("options", [])
        if isinstance(metadata, str):  # as an example in Kata's how-to has it; Kata's tools refuse to write that
            raise MountInfoBroken('its metadata is a string, which no runtime reads; write "metadata":{} for "{}"')
        if not (isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values())):
            raise MountInfoBroken("its metadata is not an object of strings")
        if not (isinstance(options, list) and all(isinstance(option, str) for option in options)):
            raise MountInfoBroken("its options are not a list of strings")
        info = cls(
            device=_text(found, "device"),
            fs_type=_text(found, "fstype"),
            options=tuple(options),
            metadata=metadata,
            volume_type=_text(found, "volume-type"),
        )
        info.encode()  # JSON can contain half a surrogate pair, which no path can hold
        return info


def _text(found: Mapping[str, Any], key: str) -> str:
    value = found.get(key, found.get(_OLDER.get(key, key)))
    if not isinstance(value, str):
        raise MountInfoBroken(f"its {key} is not a string" if value is not None else f"it has no {key}")
    return value
