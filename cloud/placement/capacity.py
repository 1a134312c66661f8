"""The capacity of several nodes that each have storage of their own: the capacity of the node with the largest room.

It is never a sum, because no volume lies on two nodes. The scheduler compares a claim with the maximum volume size, or
with the capacity if the driver tells no such size (docs/csi-contract.md#one-thread-asks-for-every-capacity).
"""

import asyncio
from collections.abc import Sequence

from google.protobuf.message import DecodeError

from cloud.nodes.edge_nodes import Nodes
from cloud.nodes.question import Answer, Question
from cloud.placement.decisions import Route, Segment
from cloud.placement.segment import without_topology
from common.csi.csi_pb2 import GetCapacityResponse
from common.errors import CallError, VendorBroken
from common.status import Code, Status


async def largest(nodes: Nodes, call: Question, routes: Sequence[Route]) -> Answer:
    """The answer of the node on which the largest volume fits. Without nodes the capacity is 0.

    A node that tells no capacity does not count. If none tells it, the caller gets a vendor's error.

    Raises:
        CallError: no vendor has told a capacity or an error, and at least one node could not be asked, or its answer
            does not parse.
    """

    async def of(route: Route) -> tuple[Status, bytes] | CallError:
        is_added = route.segment is Segment.ADDED
        request = without_topology(call.method, call.request) if is_added else call.request
        try:
            return await nodes.ask_node(route.node, call._replace(request=request))
        except CallError as error:
            return error

    rooms: list[tuple[tuple[int, int], bytes]] = []
    refused: Status | None = None
    error: CallError | None = None
    for route, answer in zip(routes, await asyncio.gather(*map(of, routes)), strict=True):
        if isinstance(answer, CallError):
            error = error or answer
        elif not answer[0].ok:
            refused = answer[0]
        elif (room := _room(answer[1])) is None:
            error = error or VendorBroken(call.driver, route.node, "its answer to GetCapacity does not parse")
        else:
            rooms.append((room, answer[1]))
    if rooms:
        return Status(Code.OK), max(rooms)[1]
    if refused is not None:
        return refused, None
    if error is not None:
        raise error
    return Status(Code.OK), GetCapacityResponse().SerializeToString()


def _room(body: bytes) -> tuple[int, int] | None:
    try:
        told = GetCapacityResponse.FromString(body)
    except DecodeError:
        return None
    free = told.available_capacity
    return (min(free, told.maximum_volume_size.value) if told.HasField("maximum_volume_size") else free), free
