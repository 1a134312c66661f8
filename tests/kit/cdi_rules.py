"""The rules of a CDI file, as an engine checks them: names, unknown fields, and the version that each field needs.

Written after the specification and the checks of CDI's own library. The devices of a file that breaks one
cannot be used.
"""

import json
import re
from typing import Any

VERSIONS = ("0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")

_NAME = re.compile(r"[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
_DEVICE_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")

_FIELDS = {
    "spec": {"cdiVersion", "kind", "annotations", "devices", "containerEdits"},
    "device": {"name", "annotations", "containerEdits"},
    "edits": {"env", "deviceNodes", "mounts", "hooks", "intelRdt", "additionalGids", "netDevices"},
    "node": {"path", "hostPath", "type", "major", "minor", "fileMode", "permissions", "uid", "gid"},
    "mount": {"hostPath", "containerPath", "type", "options"},
}


def devices_in(raw: bytes) -> dict[str, dict[str, Any]]:
    """Return the container edits of a file's devices by their qualified names."""
    spec = json.loads(raw)
    _only(spec, "spec")
    vendor, _, kind = spec["kind"].partition("/")
    assert _NAME.fullmatch(vendor)
    assert _NAME.fullmatch(kind)
    assert len(kind) <= 63
    assert spec["devices"]
    for device in spec["devices"]:
        _only(device, "device")
        assert _DEVICE_NAME.fullmatch(device["name"])
        _check_edits(device["containerEdits"])
    assert VERSIONS.index(spec["cdiVersion"]) == VERSIONS.index(_needed(spec, kind)), "the lowest version that fits"
    found = {f"{spec['kind']}={device['name']}": device["containerEdits"] for device in spec["devices"]}
    assert len(found) == len(spec["devices"]), "no name twice"
    return found


def _check_edits(edits: dict[str, Any]) -> None:
    assert edits, "no empty edits"
    _only(edits, "edits")
    for node in edits.get("deviceNodes", ()):
        _only(node, "node")
        assert node["path"]
        assert set(node.get("permissions", "")) <= set("rwm")
    for mount in edits.get("mounts", ()):
        _only(mount, "mount")
        assert mount["hostPath"]
        assert mount["containerPath"]


def _needed(spec: dict[str, Any], kind: str) -> str:
    edits = [device["containerEdits"] for device in spec["devices"]]
    if "annotations" in spec or "." in kind:
        return "0.6.0"
    if any(device["name"][0].isdigit() for device in spec["devices"]):
        return "0.5.0"
    if any("hostPath" in node for one in edits for node in one.get("deviceNodes", ())):
        return "0.5.0"
    return "0.4.0" if any("type" in mount for one in edits for mount in one.get("mounts", ())) else "0.3.0"


def _only(found: dict[str, Any], what: str) -> None:
    assert set(found) <= _FIELDS[what], f"unknown fields make a file invalid: {set(found) - _FIELDS[what]}"
