"""Names: the CSI spec's limits on names, ids and maps."""

import re
from collections.abc import Mapping

from examples.dirdriver import errors
from examples.dirdriver import names as base
from examples.dirdriver.names import is_label_value, new_id, require_path

__all__ = ["check_map", "is_driver_name", "is_label_value", "new_id", "require", "require_name", "require_path"]

STRING_LIMIT_BYTES = 128
"""CSI spec, Size Limits: any string field, unless the field says otherwise."""

MAP_LIMIT_BYTES = 4096
"""CSI spec, Size Limits: keys and values of a map together."""

_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
"""Control characters that CreateVolumeRequest.name must not hold (CSI spec)."""

_DRIVER_NAME = re.compile(r"[a-zA-Z]([A-Za-z0-9.-]{0,61}[a-zA-Z])?")
"""CSI spec, GetPluginInfoResponse.name, narrowed as csi-sanity checks it: it ends in a letter."""


def is_driver_name(name: str) -> bool:
    """Whether the CSI spec allows this name for a plugin."""
    return _DRIVER_NAME.fullmatch(name) is not None


def require(field: str, value: str, *, limits: bool = True) -> str:
    """The value of a REQUIRED string field. `limits` enforces the spec's size limit.

    Raises:
        CsiError: INVALID_ARGUMENT if it is empty or too long.
    """
    base.require(field, value)
    if limits and len(value.encode()) > STRING_LIMIT_BYTES:
        raise errors.invalid(f"{field} is longer than the {STRING_LIMIT_BYTES} bytes that the CSI spec allows")
    return value


def require_name(value: str, *, limits: bool = True) -> str:
    """The name of a new object: any Unicode but control characters (CSI spec, CreateVolumeRequest.name)."""
    require("name", value, limits=limits)
    if _CONTROL.search(value):
        raise errors.invalid("name holds a control character: the CSI spec forbids them")
    return value


def check_map(field: str, value: Mapping[str, str], *, limits: bool = True) -> None:
    """Check the spec's limit on maps: keys and values together have at most 4 KiB."""
    total = sum(len(key.encode()) + len(text.encode()) for key, text in value.items())
    if limits and total > MAP_LIMIT_BYTES:
        raise errors.invalid(f"{field} is larger than the {MAP_LIMIT_BYTES} bytes that the CSI spec allows")
