"""The vol_data.json in a volume's directory: all that unmounting the volume needs when no object is left.

Keys and form are the kubelet's (pkg/volume/csi saveVolumeData, docs/csi-contract.md#the-volume-data-file), so that the
agent and a kubelet can each take over from the other. If the file is unreadable, the volume's state is unknown; the
agent guesses nothing.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from edge.volumes import PodVolume, Volume, attachment_name

EPHEMERAL = "Ephemeral"
PERSISTENT = "Persistent"

# Limit for reading a file. The kubelet's have 400 bytes; a volumeHandle of Kubernetes 1.36 may have some thousand.
LARGEST_BYTES = 65_536

# Go's encoding/json escapes these characters, which have a meaning in HTML or JavaScript.
_HTML = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026", 0x2028: "\\u2028", 0x2029: "\\u2029"}

_KEYS = {
    "driver": "driverName",
    "handle": "volumeHandle",
    "name": "specVolID",
    "node": "nodeName",
    "attachment": "attachmentID",
    "lifecycle": "volumeLifecycleMode",
    "selinux_context": "seLinuxMountContext",
}


class VolumeDataUnknown(ValueError):
    """A vol_data.json that does not identify its volume. `str()` gives the reason, without a path."""

    def __init__(self, why: str, *, missing: bool = False) -> None:
        self.missing = missing  # there is no file
        super().__init__(why)


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeData:
    """The content of a vol_data.json. A missing key is an empty string."""

    driver: str
    handle: str
    name: str = ""  # the PV's name, or the inline volume's; the file of a staging does not contain it
    node: str = ""
    attachment: str = ""
    lifecycle: str = ""  # EPHEMERAL or PERSISTENT; empty for stagings and block volumes
    selinux_context: str = ""

    def encode(self) -> bytes:
        """Return the file as Go writes a map: sorted keys, no spaces, one newline at the end."""
        return encode_map({key: value for field, key in _KEYS.items() if (value := getattr(self, field))}) + b"\n"


def encode_map(values: Mapping[str, Any]) -> bytes:
    """Return JSON as Go's encoding/json writes a map, byte for byte. Objects inside keep their order."""
    return encode_struct(dict(sorted(values.items())))


def encode_struct(values: Mapping[str, Any]) -> bytes:
    """Return JSON as Go's encoding/json writes a struct. Raises UnicodeEncodeError."""
    return json.dumps(values, separators=(",", ":"), ensure_ascii=False).translate(_HTML).encode()


def of_staging(wanted: PodVolume) -> VolumeData:
    volume = wanted.volume
    return VolumeData(driver=volume.driver, handle=volume.handle, selinux_context=wanted.selinux_context)


def of_target(wanted: PodVolume, node: str) -> VolumeData:
    """Return the file beside a file system's target. As the kubelet's, it names an attachment even if there is none."""
    lifecycle = EPHEMERAL if wanted.volume.ephemeral else PERSISTENT
    return replace(of_block(wanted.volume, node), lifecycle=lifecycle, selinux_context=wanted.selinux_context)


def of_block(volume: Volume, node: str) -> VolumeData:
    return VolumeData(
        driver=volume.driver,
        handle=volume.handle,
        name=volume.name,
        node=node,
        attachment=attachment_name(volume.driver, volume.handle, node),
    )


def parse(raw: bytes) -> VolumeData:
    """Parse a file, and ignore keys of a newer kubelet. Raises VolumeDataUnknown if it does not identify its volume."""
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError):
        raise VolumeDataUnknown("it is not JSON") from None
    if not isinstance(found, dict):
        raise VolumeDataUnknown("it is not a JSON object")
    values = {field: found.get(key, "") for field, key in _KEYS.items()}
    for field, value in values.items():
        if not isinstance(value, str):
            raise VolumeDataUnknown(f"its {_KEYS[field]} is not a string")
        try:
            value.encode()  # JSON can contain half a surrogate pair, which no path, database row or request can hold
        except UnicodeEncodeError:
            raise VolumeDataUnknown(f"its {_KEYS[field]} is not text") from None
    for field in ("driver", "handle"):
        if not values[field]:
            raise VolumeDataUnknown(f"it has no {_KEYS[field]}")
    return VolumeData(**values)
