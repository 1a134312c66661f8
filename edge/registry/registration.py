"""The data that a driver gives at its registration, and the CSINode and Node fields made from it.

Rules:

* Pure functions: bytes and words in, values out. A broken rule is a `ValueError` in words.
* A driver's ids are taken as they are or refused, never rewritten (docs/csi-contract.md#node-ids-are-never-rewritten).
  A node cannot see that another node has the same id. The hub sees it and tells people; neither decides which node
  keeps the id.

Sources: kubernetes pkg/volume/csi (csi_plugin.go, nodeinfomanager), CSI spec "NodeGetInfo";
docs/csi-contract.md#how-a-driver-registers-with-a-node and
docs/csi-contract.md#what-a-node-writes-into-csinode-and-node.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import DecodeError

from common.csi.csi_pb2 import NodeGetCapabilitiesResponse, NodeGetInfoResponse
from common.errors import BridgeError
from common.net.sockets import FileId
from common.objects.topology import csi_node_driver
from common.parsers import LONGEST_DRIVER_NAME_CHARS, is_driver_name, is_label_key, is_label_value

PLUGIN_TYPE = "CSIPlugin"  # the only type of plugin that the agent registers

NODE_ID_ANNOTATION = "csi.volume.kubernetes.io/nodeid"

_LONGEST_NODE_ID_BYTES = 256
_MOST_SEGMENTS = 64
_SHOWN_CHARS = 500

Version = tuple[int, ...]


class NotRegistered(BridgeError):
    """A plugin cannot register, or its registration socket gave no usable answer; `str()` is the reason."""


@dataclass(frozen=True, slots=True)
class PluginOffer:
    """A plugin's answer to GetInfo."""

    socket: str
    file: FileId
    name: str
    endpoint: str  # the driver's CSI socket; empty for the registration socket itself
    versions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """A driver's answers about this node."""

    node_id: str
    max_volumes: int = 0  # the most volumes that it can have here; 0 if it does not say
    # Its accessible topology, segments by key, with the node's own segment where needed (`common.objects.topology`).
    topology: Mapping[str, str] = field(default_factory=dict)
    capabilities: frozenset[int] = frozenset()  # numbers of NodeServiceCapability.RPC


@dataclass(frozen=True, slots=True)
class Registration:
    """A driver as this node knows it, also while the driver is away and after a restart."""

    name: str
    endpoint: str
    socket: str  # the registration socket; empty for a driver that an operator named
    version: Version
    info: NodeInfo
    # Its registration socket was removed; this entry stays for a while
    # (docs/csi-contract.md#a-restarting-driver-keeps-its-csinode-entry).
    gone: bool = False


# ---- a driver's answers ----------------------------------------------------------------------------------------------


def highest_version(versions: Iterable[str]) -> Version:
    """Return the highest v1.x of a plugin, without zeros at its end: 1.0 equals 1.0.0.

    Raises ValueError if it has none: other major versions do not count.
    """
    versions = tuple(versions)
    read = [_numbers(match[1]) for match in map(_VERSION.fullmatch, versions) if match]
    supported = [version for version in read if version[0] == 1]
    if not supported:
        shown = shorten(", ".join(versions)) if versions else "none"
        raise ValueError(f"no supported version 1.x among those that it offers ({shown})")
    return max(supported)


def check_name(name: str) -> None:
    if not name:
        raise ValueError("it gives no name")
    if len(name) > LONGEST_DRIVER_NAME_CHARS:
        raise ValueError(f"its name has {len(name)} characters; CSI allows {LONGEST_DRIVER_NAME_CHARS}")
    if not is_driver_name(name):
        raise ValueError(
            f"{name!r} is not a CSI driver's name in Kubernetes: letters, digits and dashes in parts between dots, and "
            f"no part begins or ends with a dash"
        )


def read_node_info(info: bytes, capabilities: bytes) -> NodeInfo:
    """Read a driver's answers. `info` already has the bridge's segment, if the driver has no topology of its own.

    Raises ValueError: an answer breaks a rule.
    """
    try:
        said = NodeGetInfoResponse.FromString(info)
        can = NodeGetCapabilitiesResponse.FromString(capabilities)
    except DecodeError:
        raise ValueError("its answer to NodeGetInfo or NodeGetCapabilities does not parse") from None
    size = len(said.node_id.encode())
    if not size:
        raise ValueError("its answer to NodeGetInfo has no node_id")
    if size > _LONGEST_NODE_ID_BYTES:
        raise ValueError(f"its node_id has {size} bytes; CSI allows {_LONGEST_NODE_ID_BYTES}")
    topology = dict(said.accessible_topology.segments)
    _check_topology(topology)
    return NodeInfo(
        said.node_id,
        max(said.max_volumes_per_node, 0),  # CSI allows no negative number: it counts as not told
        topology,
        frozenset(capability.rpc.type for capability in can.capabilities if capability.WhichOneof("type") == "rpc"),
    )


def _check_topology(topology: Mapping[str, str]) -> None:
    if len(topology) > _MOST_SEGMENTS:
        raise ValueError(f"its topology has {len(topology)} segments; at most {_MOST_SEGMENTS} are taken")
    seen: dict[str, str] = {}
    for key, value in topology.items():
        if not is_label_key(key):
            raise ValueError(f"its topology key {shorten(key)!r} cannot be the key of a label")
        if not is_label_value(value):
            raise ValueError(f"its topology value {shorten(value)!r} of {key} cannot be the value of a label")
        if (other := seen.setdefault(key.lower(), key)) != key:  # CSI spec, "Topology": keys differ in more than case
            raise ValueError(f"its topology has the keys {other} and {key}, which are one to CSI")


def check_labels(topology: Mapping[str, str], labels: Mapping[str, str], *, whose: str) -> None:
    """Raise ValueError if a driver's topology contradicts labels of the node. `whose` names them in the error."""
    for key, value in topology.items():
        if labels.get(key, value) != value:
            raise ValueError(f"it says that this node is {key}={value}, but {whose} says {key}={labels[key]}")


def shorten(text: str) -> str:
    """Return another program's text, fit for one line of a log or of an error."""
    line = "".join(char if char.isprintable() else " " for char in text[: _SHOWN_CHARS + 1])
    return line if len(text) <= _SHOWN_CHARS else f"{line[:_SHOWN_CHARS]}… ({len(text)} characters)"


def _numbers(version: str) -> Version:
    return tuple(map(int, re.sub(r"(\.0+)+$", "", version).split(".")))


# The texts that the kubelet reads as versions (utilversion.ParseGeneric, csi_plugin.go).
_VERSION = re.compile(r"\s*v?((?:0|[1-9][0-9]{0,8})(?:\.[0-9]{1,9}){1,7})(?:[^0-9.].*)?")

# ---- facts for Kubernetes --------------------------------------------------------------------------------------------


def csi_node_drivers(registrations: Iterable[Registration]) -> list[dict[str, Any]]:
    return [
        csi_node_driver(found.name, found.info.node_id, found.info.topology, found.info.max_volumes)
        for found in sorted(registrations, key=lambda found: found.name)
    ]


def node_annotations(registrations: Iterable[Registration]) -> dict[str, str]:
    ids = {found.name: found.info.node_id for found in registrations}
    if not ids:
        return {}
    return {NODE_ID_ANNOTATION: json.dumps(ids, separators=(",", ":"), sort_keys=True, ensure_ascii=False)}


def node_labels(registrations: Iterable[Registration]) -> dict[str, str]:
    return {key: value for found in registrations for key, value in sorted(found.info.topology.items())}
