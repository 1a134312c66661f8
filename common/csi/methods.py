"""A CSI method: its path, its message types, and whether it streams. All are derived from csi.proto."""

import re
from dataclasses import dataclass
from functools import lru_cache

from google.protobuf import message_factory
from google.protobuf.message import Message

from common.csi import csi_pb2

PREFIX = "/csi.v1."  # every method that the bridge carries starts with this (CSI spec, package csi.v1)
_NODE_GET_CAPABILITIES = f"{PREFIX}Node/NodeGetCapabilities"
# A path with the names of a service and an RPC, as protobuf allows them.
_PATH = re.compile(re.escape(PREFIX) + r"(?P<service>[A-Za-z][A-Za-z0-9_]*)/[A-Za-z][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Method:
    """One RPC of csi.proto. `response` is the answer's message class, or that of each message of its stream."""

    path: str  # `/csi.v1.Controller/CreateVolume`
    request: type[Message]
    response: type[Message]
    streaming: bool  # only SnapshotMetadata's answers are streams


METHODS = {  # every method of csi.proto by path
    path: Method(
        path=path,
        request=message_factory.GetMessageClass(method.input_type),
        response=message_factory.GetMessageClass(method.output_type),
        streaming=method.server_streaming,
    )
    for service in csi_pb2.DESCRIPTOR.services_by_name.values()
    for method in service.methods
    for path in [f"/{service.full_name}/{method.name}"]
}
UNARY = frozenset(path for path, method in METHODS.items() if not method.streaming)


@lru_cache(maxsize=256)  # each hop asks for each call
def is_controller_side(path: str) -> bool:
    """Whether a method may be called from the cloud: all, also a later CSI's; of Node only NodeGetCapabilities."""
    found = _PATH.fullmatch(path)
    return found is not None and (found["service"] != "Node" or path == _NODE_GET_CAPABILITIES)
