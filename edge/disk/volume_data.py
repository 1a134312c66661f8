"""A vol_data.json: what the kubelet notes in a volume's directory, to take it down by without any object.

Keys and form are the kubelet's (contract.md C.3, pkg/volume/csi saveVolumeData), so that either can take over from the
other. What cannot be read says nothing: its volume's state is unknown, and nothing is guessed (RULE C6).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edge.volumes import PodVolume, Volume, attachment_name

EPHEMERAL = "Ephemeral"
PERSISTENT = "Persistent"

LARGEST_BYTES = 65_536
"""Of a file that is read. The kubelet's have 400 bytes; a volumeHandle of 1.36 may have some thousand."""

_HTML = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026", 0x2028: "\\u2028", 0x2029: "\\u2029"}
"""What Go's encoding/json writes of characters that HTML or JavaScript would take otherwise."""

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
    """A vol_data.json does not tell which volume it is of. `str()` says why, and names no path.

    Attributes:
        missing: there is no file.
    """

    def __init__(self, why: str, *, missing: bool = False) -> None:
        self.missing = missing
        super().__init__(why)


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeData:
    """What a vol_data.json says. A key that is missing is an empty string.

    Attributes:
        name: the PV's name, or the inline volume's; not in the file of a staging.
        lifecycle: EPHEMERAL or PERSISTENT; empty for stagings and block volumes.
    """

    driver: str
    handle: str
    name: str = ""
    node: str = ""
    attachment: str = ""
    lifecycle: str = ""
    selinux_context: str = ""

    def encode(self) -> bytes:
        """The file, as Go writes a map: keys sorted, nothing between the tokens, one newline."""
        return encode_map({key: value for field, key in _KEYS.items() if (value := getattr(self, field))}) + b"\n"


def encode_map(values: Mapping[str, Any]) -> bytes:
    """JSON as Go's encoding/json writes a map, byte for byte; objects within keep their order, as structs do."""
    text = json.dumps(dict(sorted(values.items())), separators=(",", ":"), ensure_ascii=False)
    return text.translate(_HTML).encode()


def of_staging(volume: Volume, selinux_context: str) -> VolumeData:
    """The file beside a file system's staging."""
    return VolumeData(driver=volume.driver, handle=volume.handle, selinux_context=selinux_context)


def of_target(wanted: PodVolume, node: str, selinux_context: str) -> VolumeData:
    """The file beside a file system's target. The attachment is named whether there is one or not."""
    volume = wanted.volume
    return VolumeData(
        driver=volume.driver,
        handle=volume.handle,
        name=volume.name,
        node=node,
        attachment=attachment_name(volume.driver, volume.handle, node),
        lifecycle=EPHEMERAL if volume.ephemeral else PERSISTENT,
        selinux_context=selinux_context,
    )


def of_block(volume: Volume, node: str) -> VolumeData:
    """The file of a block volume."""
    return VolumeData(
        driver=volume.driver,
        handle=volume.handle,
        name=volume.name,
        node=node,
        attachment=attachment_name(volume.driver, volume.handle, node),
    )


def parse(raw: bytes) -> VolumeData:
    """What a file says. Keys that a newer kubelet adds are ignored.

    Raises:
        VolumeDataUnknown: it does not say of which volume it is.
    """
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
            value.encode()  # JSON can tell of half a character, and no path, row or request can hold it
        except UnicodeEncodeError:
            raise VolumeDataUnknown(f"its {_KEYS[field]} is not text") from None
    for field in ("driver", "handle"):
        if not values[field]:
            raise VolumeDataUnknown(f"it has no {_KEYS[field]}")
    return VolumeData(**values)
