"""What of a .proto file is a contract on the wire, as plain dicts that can be compared.

Comments, order, language options and the marks of alpha fields are no part of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from google.protobuf.descriptor_pb2 import FieldDescriptorProto

from common.csi import csi_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator

    from google.protobuf.descriptor_pb2 import DescriptorProto, EnumDescriptorProto, FileDescriptorProto

Contract = dict[str, dict[str, Any]]
"""``message|enum|service|extension <full name>`` → what belongs to it, each by its name."""

# Published extensions that say how mature something is. Nothing on the wire depends on them.
_MATURITY_MARKS = frozenset(
    {"alpha_enum", "alpha_enum_value", "alpha_field", "alpha_message", "alpha_method", "alpha_service"}
)


def contract_of(file: FileDescriptorProto) -> Contract:
    """The contract of one file, nested messages and enums under their full names."""
    contract: Contract = {}
    for message in file.message_type:
        contract.update(_messages(message, file.package))
    for enum in file.enum_type:
        contract[f"enum {file.package}.{enum.name}"] = _enum(enum)
    for service in file.service:
        contract[f"service {file.package}.{service.name}"] = {
            method.name: {
                "request": method.input_type,
                "response": method.output_type,
                "streams": (method.client_streaming, method.server_streaming),
            }
            for method in service.method
        }
    for extension in file.extension:
        if extension.name not in _MATURITY_MARKS:
            contract[f"extension {file.package}.{extension.name}"] = _field(extension, None)
    return contract


def differences(ours: Contract, theirs: Contract) -> list[str]:
    """One line for each thing that only one side has, or that the sides see differently; empty where they agree."""
    found = []
    for name in sorted(ours.keys() | theirs.keys()):
        mine, other = ours.get(name), theirs.get(name)
        if mine is None or other is None:
            found.append(f"{name}: only in {'the published file' if mine is None else 'ours'}")
            continue
        found += [
            f"{name}, {part}: ours {mine.get(part)}, published {other.get(part)}"
            for part in sorted(mine.keys() | other.keys())
            if mine.get(part) != other.get(part)
        ]
    return found


def _messages(message: DescriptorProto, scope: str) -> Iterator[tuple[str, dict[str, Any]]]:
    name = f"{scope}.{message.name}"
    yield f"message {name}", _message(message)
    for nested in message.nested_type:
        yield from _messages(nested, name)
    for enum in message.enum_type:
        yield f"enum {name}.{enum.name}", _enum(enum)


def _message(message: DescriptorProto) -> dict[str, Any]:
    return {
        "is a map's entry": message.options.map_entry,
        "reserved numbers": sorted((reserved.start, reserved.end) for reserved in message.reserved_range),
        "reserved names": sorted(message.reserved_name),
        **{f"field {field.name}": _field(field, message) for field in message.field},
    }


def _field(field: FieldDescriptorProto, message: DescriptorProto | None) -> dict[str, Any]:
    in_oneof = message is not None and field.HasField("oneof_index")
    return {
        "number": field.number,
        "type": FieldDescriptorProto.Type.Name(field.type),
        "label": FieldDescriptorProto.Label.Name(field.label),
        "type name": field.type_name,
        "extends": field.extendee,
        "oneof": message.oneof_decl[field.oneof_index].name if message is not None and in_oneof else None,
        "optional": field.proto3_optional,
        "packed": field.options.packed if field.options.HasField("packed") else None,
        "secret": field.options.Extensions[csi_pb2.csi_secret],  # type: ignore[index]  # the stubs do not know that it is an extension
    }


def _enum(enum: EnumDescriptorProto) -> dict[str, Any]:
    return {
        "reserved numbers": sorted((reserved.start, reserved.end) for reserved in enum.reserved_range),
        "reserved names": sorted(enum.reserved_name),
        **{value.name: value.number for value in enum.value},
    }
