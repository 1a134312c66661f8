"""Topology: the segment that says on which node a volume is (CSI spec, Topology)."""

from common.csi import csi_pb2 as pb


def topology_key(driver_name: str) -> str:
    """The key of this driver's one segment, e.g. `topology.dirdriver.csi/node`. PVs carry it: never change it."""
    return f"topology.{driver_name.lower()}/node"


def topology_of(key: str, node: str) -> pb.Topology:
    return pb.Topology(segments={key: node})


def matches(term: pb.Topology, key: str, node: str) -> bool:
    """Whether a node lies in a term: all segments must match. Another driver's key matches none of our nodes."""
    return all(name == key and value == node for name, value in term.segments.items())


def allowed(wanted: pb.TopologyRequirement, key: str, node: str) -> bool:
    return not wanted.requisite or any(matches(term, key, node) for term in wanted.requisite)
