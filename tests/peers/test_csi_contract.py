"""Our csi.proto against the published one, both ways: it must not drift from what every driver and sidecar speaks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc_tools  # type: ignore[import-untyped]  # it has no types
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool
from grpc_tools import protoc

from common.csi import csi_pb2
from tests.kit.peers.wire_contract import contract_of, differences

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from google.protobuf.descriptor_pb2 import FileDescriptorProto


@pytest.fixture(scope="module")
def ours() -> FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto()
    csi_pb2.DESCRIPTOR.CopyToProto(file)
    return file


@pytest.fixture(scope="module")
def published(peer: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> FileDescriptorProto:
    """The published csi.proto, compiled into a descriptor pool of its own: it has the same names as ours."""
    source = peer("csi.proto")
    compiled = tmp_path_factory.mktemp("csi-contract") / "csi.binpb"
    command = [
        "protoc",
        f"--proto_path={source.parent}",
        f"--proto_path={grpc_tools.__path__[0]}/_proto",
        "--include_imports",
        f"--descriptor_set_out={compiled}",
        source.name,
    ]
    assert protoc.main(command) == 0
    files = descriptor_pb2.FileDescriptorSet.FromString(compiled.read_bytes()).file
    pool = descriptor_pool.DescriptorPool()
    for file in files:
        pool.Add(file)
    assert pool.FindServiceByName("csi.v1.Identity").file.name == "csi.proto"
    return files[-1]


def test_our_messages_enums_and_services_are_the_published_ones(
    ours: FileDescriptorProto, published: FileDescriptorProto
) -> None:
    found = differences(contract_of(ours), contract_of(published))

    assert found == [], "\n".join(found)


def test_the_published_contract_is_seen_whole(published: FileDescriptorProto) -> None:
    contract = contract_of(published)

    assert contract["service csi.v1.Controller"]["ControllerListVolumeHealth"] == {
        "request": ".csi.v1.ControllerListVolumeHealthRequest",
        "response": ".csi.v1.ControllerListVolumeHealthResponse",
        "streams": (False, False),
    }
    assert contract["service csi.v1.SnapshotMetadata"]["GetMetadataAllocated"]["streams"] == (False, True)
    assert contract["message csi.v1.CreateVolumeRequest"]["field secrets"]["secret"] is True
    assert contract["message csi.v1.CreateVolumeRequest"]["field name"]["secret"] is False
    assert contract["message csi.v1.VolumeCapability"]["field mount"]["oneof"] == "access_type"
    assert contract["enum csi.v1.PluginCapability.Service.Type"]["SNAPSHOT_ACCESSIBILITY_CONSTRAINTS"] == 5


def _rename_field(file: FileDescriptorProto) -> None:
    _message(file, "CreateVolumeRequest").field[0].name = "label"


def _renumber_field(file: FileDescriptorProto) -> None:
    _message(file, "CreateVolumeRequest").field[0].number = 99


def _retype_field(file: FileDescriptorProto) -> None:
    _message(file, "CreateVolumeRequest").field[0].type = descriptor_pb2.FieldDescriptorProto.TYPE_BYTES


def _show_secret(file: FileDescriptorProto) -> None:
    fields = _message(file, "CreateVolumeRequest").field
    next(field for field in fields if field.name == "secrets").ClearField("options")


def _drop_message(file: FileDescriptorProto) -> None:
    del file.message_type[-1]


def _drop_method(file: FileDescriptorProto) -> None:
    del file.service[0].method[-1]


def _stop_streaming(file: FileDescriptorProto) -> None:
    service = next(service for service in file.service if service.name == "SnapshotMetadata")
    service.method[0].server_streaming = False


def _free_reserved_number(file: FileDescriptorProto) -> None:
    next(message for message in file.message_type if message.reserved_range).ClearField("reserved_range")


def _message(file: FileDescriptorProto, name: str) -> descriptor_pb2.DescriptorProto:
    return next(message for message in file.message_type if message.name == name)


@pytest.mark.parametrize(
    "change",
    [
        _rename_field,
        _renumber_field,
        _retype_field,
        _show_secret,
        _drop_message,
        _drop_method,
        _stop_streaming,
        _free_reserved_number,
    ],
)
def test_a_drift_on_either_side_is_reported(published: FileDescriptorProto, change: Callable[..., None]) -> None:
    drifted = descriptor_pb2.FileDescriptorProto()
    drifted.CopyFrom(published)
    change(drifted)
    one, other = contract_of(drifted), contract_of(published)

    assert differences(one, other) != []
    assert differences(other, one) != []
