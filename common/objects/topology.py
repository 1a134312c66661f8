"""Topology: the bridge's segment, for vendors without a topology of their own.

Rules (docs/csi-contract.md#the-bridges-topology-for-vendors-without-one):

* A vendor has a topology if GetPluginCapabilities of any of its processes on the node names
  VOLUME_ACCESSIBILITY_CONSTRAINTS. The bridge adds nothing to it.
* For any other vendor the bridge names the node by one segment. CSINode's topology key, the Node's label, NodeGetInfo
  and each volume that is made there have this segment.
* A segment becomes a label of a Node. A node whose name cannot be a label's value has no segment.
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final

from google.protobuf.message import DecodeError

from common.csi.csi_pb2 import GetPluginCapabilitiesResponse, NodeGetInfoResponse, PluginCapability, Topology
from common.parsers import is_label_value

NODE_SEGMENT: Final = "csi-bridge.io/node"  # the key; its value is the node's name

_MOST_VOLUMES: Final = 2**31 - 1  # an int32 in the API

_OWN: Final = PluginCapability.Service.VOLUME_ACCESSIBILITY_CONSTRAINTS


@lru_cache(maxsize=64)  # most nodes of a driver say the same
def has_topology(capabilities: bytes) -> bool:
    """Whether a vendor's process has a topology of its own, by its GetPluginCapabilitiesResponse. Raises ValueError."""
    try:
        said = GetPluginCapabilitiesResponse.FromString(capabilities)
    except DecodeError:
        raise ValueError("its answer to GetPluginCapabilities does not parse") from None
    return any(it.WhichOneof("type") == "service" and it.service.type == _OWN for it in said.capabilities)


def with_topology(capabilities: bytes) -> bytes:
    """The vendor's response with VOLUME_ACCESSIBILITY_CONSTRAINTS appended."""
    own = PluginCapability(service=PluginCapability.Service(type=_OWN))
    return capabilities + GetPluginCapabilitiesResponse(capabilities=[own]).SerializeToString()


def segment_of(node: str) -> dict[str, str]:
    """A node's segment: its key and value. Empty if the node has none (`why_no_segment`)."""
    return {} if why_no_segment(node) else {NODE_SEGMENT: node}


def why_no_segment(node: str) -> str:
    """The reason why a node has no segment, in words; empty if it has one."""
    if node and is_label_value(node):
        return ""
    return (
        f"the node's name {node!r} cannot be the value of the label {NODE_SEGMENT}: a label's value has at most 63 "
        f"characters, letters and digits with dashes, dots and underscores between them"
    )


def csi_node_driver(name: str, node_id: str, topology: Iterable[str], max_volumes: int) -> dict[str, Any]:
    """A driver's entry in a CSINode. `max_volumes` of 0 or less are no limit."""
    allocatable = {"allocatable": {"count": min(max_volumes, _MOST_VOLUMES)}} if max_volumes > 0 else {}
    return {"name": name, "nodeID": node_id, "topologyKeys": sorted(topology), **allocatable}


def is_tied(node_info: bytes) -> bool:
    return NODE_SEGMENT in NodeGetInfoResponse.FromString(node_info).accessible_topology.segments


def told_node_info(node_info: bytes, node: str, *, own_topology: bool) -> bytes:
    """The NodeGetInfoResponse for Kubernetes: the vendor's, with the node's segment unless it has `own_topology`.

    A reader merges two messages that follow one another (Protocol Buffers, "Encoding", "Last One Wins"). So the
    vendor's bytes stay as they are.
    """
    segment = {} if own_topology else segment_of(node)
    if not segment:
        return node_info
    return node_info + NodeGetInfoResponse(accessible_topology=Topology(segments=segment)).SerializeToString()
