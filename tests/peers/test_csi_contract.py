"""Our csi.proto against the published one, both ways: it must not drift from what every driver and sidecar speaks."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc_tools  # type: ignore[import-untyped]  # it has no types
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.json_format import MessageToDict
from grpc_tools import protoc

from common.csi import csi_pb2

_DECLARED = ("messageType", "enumType", "service", "extension")

_MATURITY = "alpha_"  # Extensions that begin so say how mature something is. Nothing on the wire depends on them.


def contract_of(file: FileDescriptorProto) -> set[str]:
    """What of a file is a contract on the wire, a line for each part: no comments, order or options of languages."""
    declared = MessageToDict(file)
    return {line for kind in _DECLARED for line in _lines(kind, declared.get(kind, []))}


def _lines(path: str, found: Any) -> Iterator[str]:
    if isinstance(found, dict):
        for key, value in found.items():
            if key != "jsonName" and _MATURITY not in key:
                yield from _lines(f"{path} {key}", value)
    elif isinstance(found, list):
        for each in found:
            named = isinstance(each, dict) and "name" in each
            if not (named and each["name"].startswith(_MATURITY)):
                yield from _lines(f"{path} {each['name']}" if named else path, each)
    else:
        yield f"{path}: {found}"


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
    assert contract_of(ours) ^ contract_of(published) == set()


def test_the_published_contract_is_seen_whole(published: FileDescriptorProto) -> None:
    name, secrets = (f"messageType CreateVolumeRequest field {field}" for field in ("name", "secrets"))
    kinds = "messageType PluginCapability nestedType Service enumType Type"
    assert contract_of(published) >= {
        "service Controller method ControllerListVolumeHealth inputType: .csi.v1.ControllerListVolumeHealthRequest",
        "service SnapshotMetadata method GetMetadataAllocated serverStreaming: True",
        f"{name} number: 1",
        f"{name} type: TYPE_STRING",
        f"{secrets} options [csi.v1.csi_secret]: True",
        "messageType VolumeCapability field mount oneofIndex: 0",
        f"{kinds} value SNAPSHOT_ACCESSIBILITY_CONSTRAINTS number: 5",
    }
    assert any(" reservedRange " in line for line in contract_of(published))
