"""The bridge's own segment in calls: removed from requests before the vendor gets them, added to its answers.

This is for vendors without a topology of their own, for volumes and snapshots alike
(docs/csi-contract.md#the-bridges-topology-for-vendors-without-one). The CSI spec forbids a topology requirement in a
call to such a vendor, so the hub removes it whole.
"""

from google.protobuf.message import DecodeError

from cloud.claims.requests import walk
from cloud.claims.rules import RULES
from cloud.placement.decisions import Route, Segment
from common.csi.csi_pb2 import Volume
from common.csi.methods import METHODS


def without_topology(method: str, request: bytes) -> bytes:
    """A request without its topology, for a vendor that has none; the same bytes if it has no topology."""
    rule = RULES.get(method)
    if rule is None or not rule.wants:
        return request
    message = METHODS[method].request.FromString(request)
    if not message.HasField(rule.wants):
        return request
    message.ClearField(rule.wants)
    return message.SerializeToString()


def placed_answer(method: str, route: Route, answer: bytes) -> bytes:
    """An answer with its topology changed as `Route.segment` says; the same bytes if it has nothing to change.

    ADDED concerns all volumes and snapshots in it, MISSING those volumes that the vendor gives none
    (docs/csi-contract.md#a-local-volume-says-where-it-is). An answer that does not parse stays as it is.
    """
    rule = RULES.get(method)
    segments = route.member.segments if route.member is not None else {}
    if route.segment is Segment.AS_IS or not segments or rule is None or not rule.placed:
        return answer
    try:
        message = METHODS[method].response.FromString(answer)
    except DecodeError:
        return answer
    is_changed = False
    is_added = route.segment is Segment.ADDED
    for field in rule.placed:
        for placed in walk(message, field):
            if is_added or (isinstance(placed, Volume) and not placed.accessible_topology):
                del placed.accessible_topology[:]
                added = placed.accessible_topology.add().segments
                for key, value in segments.items():  # `update` is three more functions
                    added[key] = value
                is_changed = True
    return message.SerializeToString() if is_changed else answer
