"""Redaction: removes secrets from a CSI message before it is shown, stored or compared.

Rules:
* A field marked `csi_secret` (CSI spec, "Secrets Requirements") is never shown and never stored.
* `mount_flags` and `publish_context` may hold credentials, and the kubelet puts service account tokens into
  `volume_context` (KEP-1855). These are not shown either. As arguments they count in a comparison.
* Reflection finds the fields to strip, once for each message type. Fields that csi.proto lacks are not shown.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, TypeVar, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from common.csi import csi_pb2

M = TypeVar("M", bound=Message)

STRIPPED: Final = "***stripped***"  # csi-lib-utils' word (protosanitizer): operators' tools may search for it
SENSITIVE_FIELDS: Final = frozenset({"mount_flags", "publish_context"})  # the spec says that they may be sensitive
# Keys of string maps whose values are credentials (Kubernetes pkg/volume/csi, CSIDriver.spec.tokenRequests).
SENSITIVE_KEYS: Final = frozenset({"csi.storage.k8s.io/serviceAccount.tokens"})


def redacted(message: Message) -> dict[str, Any]:
    """A message as JSON-like data with csi.proto's field names, and `STRIPPED` in place of sensitive values.

    64-bit numbers are strings, enums are names (protobuf's JSON mapping). Unset fields and unknown ones are left out.
    """
    from google.protobuf.json_format import MessageToDict  # noqa: PLC0415  # an agent never shows a message

    shown = MessageToDict(message, preserving_proto_field_name=True)
    _strip(shown, _plan(message.DESCRIPTOR, _is_sensitive))
    return shown


def without_secrets(message: M) -> M:
    """A copy of a message with every `csi_secret` field cleared. Unknown fields are kept."""
    copy = type(message)()
    copy.CopyFrom(message)
    _clear(copy, _plan(message.DESCRIPTOR, _is_secret))
    return copy


def digest(message: Message) -> bytes:
    """A SHA-256 of the message without its secrets: 32 bytes that are equal for equal arguments.

    A sidecar's retry may have rotated secrets, and its maps in another order, as Go writes them in random order.
    Neither changes the digest.
    """
    known = without_secrets(message)
    whole = known.SerializeToString(deterministic=True)
    known.DiscardUnknownFields()
    if known.ByteSize() == len(whole):
        return hashlib.sha256(whole).digest()
    parts = [known.SerializeToString(deterministic=True), *sorted(_unknown(without_secrets(message), ""))]
    return hashlib.sha256(b"\0".join(parts)).digest()


@dataclass(frozen=True, slots=True)
class _Plan:
    whole: tuple[str, ...]
    maps: tuple[str, ...]  # the string maps in which to strip `SENSITIVE_KEYS`; empty if the message is not to be shown
    # The fields whose messages have parts to strip, and their plans.
    within: tuple[tuple[FieldDescriptor, "_Plan"], ...]


def _is_secret(field: FieldDescriptor) -> bool:
    options: Any = field.GetOptions()  # types-protobuf does not know that a generated extension is an extension
    return bool(options.Extensions[csi_pb2.csi_secret])


def _is_sensitive(field: FieldDescriptor) -> bool:
    return _is_secret(field) or field.name in SENSITIVE_FIELDS


@cache
def _plan(message: Descriptor, strips: Callable[[FieldDescriptor], bool]) -> _Plan:
    # CSI's types do not contain themselves (a test checks it), so this ends.
    others = [field for field in message.fields if not strips(field)]
    within = [(field, _plan(field.message_type, strips)) for field in others if _is_message(field)]
    return _Plan(
        whole=tuple(field.name for field in message.fields if strips(field)),
        maps=tuple(field.name for field in others if _is_map(field) and strips is _is_sensitive),
        within=tuple((field, plan) for field, plan in within if plan.whole or plan.maps or plan.within),
    )


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _is_message(field: FieldDescriptor) -> bool:
    return field.message_type is not None and not _is_map(field)


def _strip(shown: dict[str, Any], plan: _Plan) -> None:
    for name in plan.whole:
        if name in shown:
            shown[name] = STRIPPED
    for name in plan.maps:
        for key in SENSITIVE_KEYS & shown.get(name, {}).keys():
            shown[name][key] = STRIPPED
    for field, inner in plan.within:
        value = shown.get(field.name, [])
        for item in value if field.is_repeated else [value] * bool(value):
            _strip(item, inner)


def _clear(message: Message, plan: _Plan) -> None:
    for name in plan.whole:
        message.ClearField(name)
    for field, inner in plan.within:
        for item in _messages(message, field):
            _clear(item, inner)


def _messages(message: Message, field: FieldDescriptor) -> Iterable[Message]:
    if field.is_repeated:
        return cast("Iterable[Message]", getattr(message, field.name))
    return [getattr(message, field.name)] if message.HasField(field.name) else []


def _unknown(message: Message, path: str) -> Iterator[bytes]:
    # The unknown fields of a message and of those within it, each with the path to it.
    for entry in _entries(UnknownFieldSet(message)):
        yield f"{path}{entry.field_number}:{_data(entry.data)}".encode()
    for field, _ in message.ListFields():
        if _is_message(field):
            for position, item in enumerate(_messages(message, field)):
                yield from _unknown(item, f"{path}{field.number}.{position}.")


def _entries(fields: UnknownFieldSet) -> Iterable[Any]:
    return cast("Iterable[Any]", fields)  # it has a length and an index; types-protobuf knows neither


def _data(data: object) -> str:
    if isinstance(data, UnknownFieldSet):  # a group, which proto3 does not write
        return str(sorted(f"{entry.field_number}:{_data(entry.data)}" for entry in _entries(data)))
    return repr(data)
