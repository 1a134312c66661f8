"""A capability: what the driver tells the caller it can do. Data: each switch, and what it adds."""

from collections.abc import Mapping, Sequence
from typing import TypeVar, cast

from common.csi import csi_pb2 as pb
from tests.kit.testdriver.settings import Settings

Plugin = pb.PluginCapability.Service.Type
Controller = pb.ControllerServiceCapability.RPC.Type
Node = pb.NodeServiceCapability.RPC.Type

VOLUME_CONDITION = cast("Controller", 11)
"""Of the controller until CSI 1.12; CSI 1.13 reserves the number."""

ALWAYS = ""
"""The switch that cannot be turned off."""

PLUGIN: Mapping[str, Sequence[Plugin]] = {
    ALWAYS: (Plugin.CONTROLLER_SERVICE, Plugin.GROUP_CONTROLLER_SERVICE),
    "topology": (Plugin.VOLUME_ACCESSIBILITY_CONSTRAINTS,),
    "snapshot topology": (Plugin.SNAPSHOT_ACCESSIBILITY_CONSTRAINTS,),
    "metadata": (Plugin.SNAPSHOT_METADATA_SERVICE,),
}

CONTROLLER: Mapping[str, Sequence[Controller]] = {
    ALWAYS: (
        Controller.CREATE_DELETE_VOLUME,
        Controller.LIST_VOLUMES,
        Controller.GET_VOLUME,
        Controller.GET_CAPACITY,
        Controller.CREATE_DELETE_SNAPSHOT,
        Controller.LIST_SNAPSHOTS,
        Controller.GET_SNAPSHOT,
        Controller.CLONE_VOLUME,
        Controller.EXPAND_VOLUME,
        Controller.GET_VOLUME_HEALTH,
        Controller.LIST_VOLUME_HEALTH,
    ),
    "attach": (
        Controller.PUBLISH_UNPUBLISH_VOLUME,
        Controller.PUBLISH_READONLY,
        Controller.LIST_VOLUMES_PUBLISHED_NODES,
    ),
    "condition": (VOLUME_CONDITION,),
    "modify": (Controller.MODIFY_VOLUME,),
    "multi-writer": (Controller.SINGLE_NODE_MULTI_WRITER,),
}

NODE: Mapping[str, Sequence[Node]] = {
    ALWAYS: (
        Node.GET_VOLUME_STATS,
        Node.GET_VOLUME_HEALTH,
        Node.GET_STORAGE_HEALTH,
    ),
    "node expand": (Node.EXPAND_VOLUME,),
    "stage": (Node.STAGE_UNSTAGE_VOLUME,),
    "multi-writer": (Node.SINGLE_NODE_MULTI_WRITER,),
    "mount group": (Node.VOLUME_MOUNT_GROUP,),
}

Type = TypeVar("Type")


def switches(settings: Settings) -> frozenset[str]:
    """The switches that are on."""
    states = {
        ALWAYS: True,
        "attach": settings.attach,
        "stage": settings.stage,
        "node expand": settings.node_expand,
        "topology": settings.topology,
        "snapshot topology": settings.topology and settings.snapshot_topology,
        "metadata": settings.metadata,
        "condition": settings.volume_condition,
        "modify": bool(settings.mutable_parameters),
        "multi-writer": settings.multi_writer,
        "mount group": settings.mount_group,
    }
    return frozenset(name for name, on in states.items() if on)


def chosen(table: Mapping[str, Sequence[Type]], settings: Settings) -> list[Type]:
    """What the switches that are on add up to, in the order of the table."""
    on = switches(settings)
    return [capability for switch, capabilities in table.items() if switch in on for capability in capabilities]
