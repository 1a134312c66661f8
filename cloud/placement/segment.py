"""The bridge's own topology segment in calls. The hub removes it from requests, and adds it to the vendor's answers.

It is for vendors without a topology (docs/csi-contract.md#the-bridges-topology-for-vendors-without-one), for volumes
and snapshots alike. The CSI spec forbids a topology requirement in a call to such a vendor, so the hub removes all of
it.
"""

from google.protobuf.message import DecodeError

from cloud.claims.requests import walk
from cloud.claims.rules import RULES
from cloud.placement.decisions import Route, Segment
from common.csi.csi_pb2 import Volume
from common.csi.methods import METHODS


def without_topology(method: str, request: bytes) -> bytes:
    """A request without its topology. Returns the same bytes if it has none."""
    rule = RULES.get(method)
    if rule is None or not rule.requested_topology:
        return request
    message = METHODS[method].request.FromString(request)
    if not message.HasField(rule.requested_topology):
        return request
    message.ClearField(rule.requested_topology)
    return message.SerializeToString()


def answer_with_topology(method: str, route: Route, answer: bytes) -> bytes:
    """An answer with the node's topology, as `Route.segment` says. Returns the same bytes if nothing is to change.

    ADDED sets the topology of all volumes and snapshots. MISSING sets it for each volume that the vendor gives none
    (docs/csi-contract.md#a-local-volume-says-where-it-is). An answer that does not parse stays as it is.
    """
    rule = RULES.get(method)
    segments = route.member.segments if route.member is not None else {}
    if route.segment is Segment.AS_IS or not segments or rule is None or not rule.answered_topology:
        return answer
    try:
        message = METHODS[method].response.FromString(answer)
    except DecodeError:
        return answer
    is_changed = False
    is_added = route.segment is Segment.ADDED
    for field in rule.answered_topology:
        for placed in walk(message, field):
            if is_added or (isinstance(placed, Volume) and not placed.accessible_topology):
                del placed.accessible_topology[:]
                added = placed.accessible_topology.add().segments
                for key, value in segments.items():  # `update` is three more functions
                    added[key] = value
                is_changed = True
    return message.SerializeToString() if is_changed else answer
