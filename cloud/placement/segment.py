"""The bridge's own segment in calls: removed from requests before the vendor gets them, added to its answers.

This is for vendors without a topology of their own, for volumes and snapshots alike
(docs/csi-contract.md#the-bridges-topology-for-vendors-without-one). The CSI spec forbids a topology requirement in a
call to such a vendor, so the hub removes it whole.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from google.protobuf.message import DecodeError, Message

from cloud.placement.decisions import Segment, Send
from cloud.placement.rules import RULES
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


def with_topology(method: str, answer: bytes, segments: Mapping[str, str]) -> bytes:
    """An answer with a topology for all its volumes and snapshots; the same bytes if it has none.

    Raises:
        ValueError: the answer does not parse.
    """
    return _placed(method, answer, segments, lambda _: True)


def with_missing_topology(method: str, answer: bytes, segments: Mapping[str, str]) -> bytes:
    """An answer with a topology for those volumes that the vendor gives none.

    See docs/csi-contract.md#a-local-volume-says-where-it-is.
    """
    return _placed(method, answer, segments, lambda it: isinstance(it, Volume) and not it.accessible_topology)


def placed_answer(method: str, send: Send, answer: bytes) -> bytes:
    """An answer with its topology changed as `Send.segment` says. An answer that does not parse stays as it is."""
    if send.segment is Segment.AS_IS or send.member is None or not send.member.segments:
        return answer
    edit = with_topology if send.segment is Segment.ADDED else with_missing_topology
    try:
        return edit(method, answer, send.member.segments)
    except ValueError:
        return answer


def _placed(method: str, answer: bytes, segments: Mapping[str, str], is_due: Callable[[Any], bool]) -> bytes:
    rule = RULES.get(method)
    if rule is None or not rule.placed:
        return answer
    message = _read(method, answer)
    due = [each for field in rule.placed for each in _messages(message, field) if is_due(each)]
    for placed in due:
        del placed.accessible_topology[:]
        placed.accessible_topology.add().segments.update(segments)
    return message.SerializeToString() if due else answer


def _read(method: str, answer: bytes) -> Message:
    try:
        return METHODS[method].response.FromString(answer)
    except DecodeError:
        raise ValueError(f"not a {METHODS[method].response.DESCRIPTOR.name}") from None


def _messages(message: Message, field: str) -> Iterator[Any]:
    first, _, rest = field.partition(".")
    value: Any = getattr(message, first)
    if isinstance(value, Message):
        value = (value,) if message.HasField(first) else ()
    for each in value:
        if rest:
            yield from _messages(each, rest)
        else:
            yield each
