"""A mount info: what a runtime needs to mount one direct volume in its guest, and what the agent reads of it.

The JSON is that of Kata's Go package (src/runtime/pkg/direct-volume), byte for byte. runtime-rs reads the same keys
since Kata 3.3.0. Two rules keep one file good for both runtimes:

* `volume-type` is `directvol`, for a block device and for a disk image. The Go runtime does not read it, and runtime-rs
  refuses other words.
* `bind` is no mount option: the Go runtime would pass it to the guest's mount.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from edge.disk.runtimes import DIRECT
from edge.disk.volume_data import encode_struct
from edge.volume_errors import Uncertain

# A metadata key: the gid, in decimal digits. The Go runtime's guest gives the volume's files to it.
FS_GROUP = "fsGroup"

# A metadata key: `Always` or `OnRootMismatch`. It counts only beside `FS_GROUP`.
FS_GROUP_POLICY = "fsGroupChangePolicy"


def broken(why: str) -> Uncertain:
    """A `mountInfo.json` cannot be written or read."""
    return Uncertain(f"the mount info cannot be used: {why}")


def mount_info(device: str, fs_type: str, options: Sequence[str], metadata: Mapping[str, str]) -> bytes:
    """Return the file: keys in the order of Kata's struct, sorted metadata, no spaces, no newline at the end.

    It never holds a secret: everybody who may read the file sees it.

    Args:
        device: the path of a block device, or of a disk image, on the host.
        fs_type: the file system in it, as the guest's mount(8) calls it.
        options: mount options in the guest. `ro` also makes the device read-only.
        metadata: `FS_GROUP` and `FS_GROUP_POLICY`.
    """
    info: dict[str, Any] = {"volume-type": DIRECT, "device": device, "fstype": fs_type}
    if metadata:
        info["metadata"] = dict(sorted(metadata.items()))
    if options:
        info["options"] = list(options)
    try:
        return encode_struct(info)
    except UnicodeEncodeError:
        raise broken("a value is not Unicode text") from None


def device_of(raw: bytes) -> str:
    """Read the device from a file that an agent or a driver wrote. Raises Uncertain."""
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError):
        raise broken("it is not JSON") from None
    device = found.get("device") if isinstance(found, dict) else None
    if not isinstance(device, str):
        raise broken("it names no device")
    try:
        device.encode()  # JSON can contain half a surrogate pair, which no path can hold
    except UnicodeEncodeError:
        raise broken("its device is not Unicode text") from None
    return device
