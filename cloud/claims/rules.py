"""The rules: for each CSI method, the fields of its request and answer that placement reads.

    CreateVolume                its name, the source's id, the requested topology; the id in the answer
    DeleteVolume                the id
    ControllerPublishVolume     the id and the vendor's node id
    ListVolumes                 no field of the request: it concerns every node

CSI spec, "RPC Interface"; docs/csi-contract.md#which-field-of-a-call-names-the-node.
"""

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from common.csi.csi_pb2 import ControllerServiceCapability

_CONTROLLER = "/csi.v1.Controller/"
_GROUP = "/csi.v1.GroupController/"
_METADATA = "/csi.v1.SnapshotMetadata/"

VOLUME = "volume"
SNAPSHOT = "snapshot"
GROUP = "group snapshot"

GET_CAPACITY: Final = _CONTROLLER + "GetCapacity"

# The capability to list things, by kind.
LISTED_BY: Final = {
    VOLUME: ControllerServiceCapability.RPC.LIST_VOLUMES,
    SNAPSHOT: ControllerServiceCapability.RPC.LIST_SNAPSHOTS,
}


class Listing(NamedTuple):
    """A method that lists all things of a kind, page by page."""

    kind: str  # the kind of things
    capability: int  # the capability of a driver that serves the method
    id_of: Callable[[Any], str]  # the id in an entry


# In all these methods, requests and answers have the same fields for their pages.
LISTINGS: Final[Mapping[str, Listing]] = {
    _CONTROLLER + "ListVolumes": Listing(VOLUME, LISTED_BY[VOLUME], operator.attrgetter("volume.volume_id")),
    _CONTROLLER + "ListSnapshots": Listing(SNAPSHOT, LISTED_BY[SNAPSHOT], operator.attrgetter("snapshot.snapshot_id")),
    _CONTROLLER + "ControllerListVolumeHealth": Listing(
        VOLUME, ControllerServiceCapability.RPC.LIST_VOLUME_HEALTH, operator.attrgetter("volume_id")
    ),
}


class Thing(NamedTuple):
    """A volume, a snapshot or a group of snapshots."""

    kind: str  # `VOLUME`, `SNAPSHOT` or `GROUP`
    id: str  # the vendor's

    def __str__(self) -> str:
        """`volume vol-1`, for messages."""
        return f"{self.kind} {self.id}"


@dataclass(frozen=True, slots=True)
class Rule:
    """The fields of a method's request and answer that placement reads. Fields are dotted paths."""

    # the things of the request, by kind and field. One node must have all of them.
    about: tuple[tuple[str, str], ...] = ()
    parts: tuple[tuple[str, str], ...] = ()  # the members of these things, by kind and field. The same node has them.
    optional: bool = False  # whether `about` may be empty in a request, because it is a source or a filter
    # the name of a create, its idempotency key (docs/csi-contract.md#when-two-calls-are-one-operation). Empty: the
    # method makes nothing.
    name: str = ""
    makes: tuple[tuple[str, str], ...] = ()  # the things in the answer of a create, by kind and field
    deletes: tuple[tuple[str, str], ...] = ()  # the things that do not exist after a success, by kind and field
    requested_topology: str = ""  # the requested topology: a TopologyRequirement or a Topology
    answered_topology: tuple[str, ...] = ()  # the messages in the answer that have a field `accessible_topology`
    # the capabilities without which a driver refuses the call. Each has the field of the request that needs it; empty:
    # every request does. Deletions and unpublications need none, because the node must always get them.
    needs: tuple[tuple[str, str], ...] = ()
    changes: bool = False  # whether the method changes a thing without making or deleting one


_CONTROLLER_SERVICE = ("CONTROLLER_SERVICE", "")
_GROUPS = (("GROUP_CONTROLLER_SERVICE", ""), ("CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT", ""))
_METADATA_SERVICE = (("SNAPSHOT_METADATA_SERVICE", ""),)


# The rule of each method that names something. A method without a rule concerns every node.
RULES: Final[Mapping[str, Rule]] = {
    _CONTROLLER + "CreateVolume": Rule(
        about=(
            (VOLUME, "volume_content_source.volume.volume_id"),
            (SNAPSHOT, "volume_content_source.snapshot.snapshot_id"),
        ),
        optional=True,
        name="name",
        makes=((VOLUME, "volume.volume_id"),),
        requested_topology="accessibility_requirements",
        answered_topology=("volume",),
        needs=(
            _CONTROLLER_SERVICE,
            ("CREATE_DELETE_VOLUME", ""),
            ("CLONE_VOLUME", "volume_content_source.volume"),
            ("CREATE_DELETE_SNAPSHOT", "volume_content_source.snapshot"),
            ("MODIFY_VOLUME", "mutable_parameters"),
        ),
    ),
    _CONTROLLER + "DeleteVolume": Rule(about=((VOLUME, "volume_id"),), deletes=((VOLUME, "volume_id"),)),
    _CONTROLLER + "ControllerPublishVolume": Rule(
        about=((VOLUME, "volume_id"),),
        needs=(_CONTROLLER_SERVICE, ("PUBLISH_UNPUBLISH_VOLUME", ""), ("PUBLISH_READONLY", "readonly")),
        changes=True,
    ),
    _CONTROLLER + "ControllerUnpublishVolume": Rule(about=((VOLUME, "volume_id"),), changes=True),
    _CONTROLLER + "ValidateVolumeCapabilities": Rule(about=((VOLUME, "volume_id"),), needs=(_CONTROLLER_SERVICE,)),
    _CONTROLLER + "ControllerExpandVolume": Rule(
        about=((VOLUME, "volume_id"),), needs=(_CONTROLLER_SERVICE, ("EXPAND_VOLUME", "")), changes=True
    ),
    _CONTROLLER + "ControllerModifyVolume": Rule(
        about=((VOLUME, "volume_id"),), needs=(_CONTROLLER_SERVICE, ("MODIFY_VOLUME", "")), changes=True
    ),
    _CONTROLLER + "ControllerGetVolume": Rule(
        about=((VOLUME, "volume_id"),), answered_topology=("volume",), needs=(_CONTROLLER_SERVICE, ("GET_VOLUME", ""))
    ),
    _CONTROLLER + "ControllerGetVolumeHealth": Rule(
        about=((VOLUME, "volume_id"),), needs=(_CONTROLLER_SERVICE, ("GET_VOLUME_HEALTH", ""))
    ),
    _CONTROLLER + "CreateSnapshot": Rule(
        about=((VOLUME, "source_volume_id"),),
        name="name",
        makes=((SNAPSHOT, "snapshot.snapshot_id"),),
        requested_topology="accessibility_requirements",
        answered_topology=("snapshot",),
        needs=(_CONTROLLER_SERVICE, ("CREATE_DELETE_SNAPSHOT", "")),
    ),
    _CONTROLLER + "DeleteSnapshot": Rule(about=((SNAPSHOT, "snapshot_id"),), deletes=((SNAPSHOT, "snapshot_id"),)),
    _CONTROLLER + "GetSnapshot": Rule(
        about=((SNAPSHOT, "snapshot_id"),),
        answered_topology=("snapshot",),
        needs=(_CONTROLLER_SERVICE, ("GET_SNAPSHOT", "")),
    ),
    _CONTROLLER + "ListSnapshots": Rule(
        about=((SNAPSHOT, "snapshot_id"), (VOLUME, "source_volume_id")),
        optional=True,
        answered_topology=("entries.snapshot",),
    ),
    _CONTROLLER + "ListVolumes": Rule(answered_topology=("entries.volume",)),
    _CONTROLLER + "ControllerListVolumeHealth": Rule(),
    GET_CAPACITY: Rule(requested_topology="accessible_topology", needs=(_CONTROLLER_SERVICE, ("GET_CAPACITY", ""))),
    _GROUP + "CreateVolumeGroupSnapshot": Rule(
        about=((VOLUME, "source_volume_ids"),),
        name="name",
        makes=((GROUP, "group_snapshot.group_snapshot_id"), (SNAPSHOT, "group_snapshot.snapshots.snapshot_id")),
        answered_topology=("group_snapshot.snapshots",),
        needs=_GROUPS,
    ),
    _GROUP + "DeleteVolumeGroupSnapshot": Rule(
        about=((GROUP, "group_snapshot_id"),),
        parts=((SNAPSHOT, "snapshot_ids"),),
        deletes=((GROUP, "group_snapshot_id"), (SNAPSHOT, "snapshot_ids")),
    ),
    _GROUP + "GetVolumeGroupSnapshot": Rule(
        about=((GROUP, "group_snapshot_id"),),
        parts=((SNAPSHOT, "snapshot_ids"),),
        answered_topology=("group_snapshot.snapshots",),
        needs=_GROUPS,
    ),
    _METADATA + "GetMetadataAllocated": Rule(about=((SNAPSHOT, "snapshot_id"),), needs=_METADATA_SERVICE),
    _METADATA + "GetMetadataDelta": Rule(
        about=((SNAPSHOT, "base_snapshot_id"), (SNAPSHOT, "target_snapshot_id")), needs=_METADATA_SERVICE
    ),
}


# The methods whose success deletes something.
DELETIONS: Final = frozenset(method for method, rule in RULES.items() if rule.deletes)

# The methods whose success makes or deletes something.
CHANGES: Final = DELETIONS | {method for method, rule in RULES.items() if rule.name}

# The methods that change something at the vendor. Their requests have a name or a key (`RequestFields`).
MUTATING: Final = CHANGES | {method for method, rule in RULES.items() if rule.changes}
