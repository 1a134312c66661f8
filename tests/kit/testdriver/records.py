"""A record: one row of the database. Fields are columns; nothing here reads or writes."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from tests.kit.testdriver.access import Layout


class Phase(StrEnum):
    """How far an object has come. Only READY ones are shown to callers."""

    CREATING = "creating"
    """Its owner is making its data; what a crash leaves is removed at the owner's next start."""
    READY = "ready"
    DELETING = "deleting"
    """Its data is being removed; the next start, or the next DeleteVolume, removes the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What a volume or a snapshot holds: enough to copy it.

    Attributes:
        layout: what its data is made of.
        size_bytes: its size as the caller knows it.
        fs_type: the filesystem in it, empty for a directory and for block.
        fs_bytes: the size that filesystem was made or grown to; 0 as long as there is none.
        node: where it lives.
    """

    layout: Layout
    size_bytes: int
    fs_type: str = ""
    fs_bytes: int = 0
    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume(Content):
    """A volume.

    Attributes:
        seq: grows with each creation; 0 until the database gives it.
        volume_id: the id that the caller was given.
        name: the caller's name for it; several records may share one only under the fault `non-idempotent`.
        phase: how far it is.
        owner: the node whose process makes or deletes it.
        parameters: of the request, JSON with sorted keys.
        mutable_parameters: in force now, JSON with sorted keys.
        source_kind: `volume`, `snapshot` or empty.
        source_id: what it was copied from.
        ephemeral: whether it lives as long as its publication (inline volume).
    """

    seq: int = 0
    volume_id: str
    name: str
    phase: Phase
    owner: str
    parameters: str = "{}"
    mutable_parameters: str = "{}"
    source_kind: str = ""
    source_id: str = ""
    ephemeral: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot(Content):
    """A snapshot: a copy of a volume's data.

    Attributes:
        seq: grows with each creation; 0 until the database gives it.
        snapshot_id: the id that the caller was given.
        name: the caller's name for it; a group's members have names of their own.
        phase: how far it is.
        owner: the node whose process makes or deletes it.
        source_volume_id: what it is a copy of; that volume may be gone.
        group_id: the group that it belongs to, or empty.
        created_ns: nanoseconds since the epoch.
    """

    seq: int = 0
    snapshot_id: str
    name: str
    phase: Phase
    owner: str
    source_volume_id: str
    group_id: str = ""
    created_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A group snapshot.

    Attributes:
        seq: grows with each creation; 0 until the database gives it.
        group_id: the id that the caller was given.
        name: the caller's name for it.
        phase: how far it is.
        owner: the node whose process makes or deletes it.
        sources: the volumes' ids, a sorted JSON list.
        created_ns: nanoseconds since the epoch.
    """

    seq: int = 0
    group_id: str
    name: str
    phase: Phase
    owner: str
    sources: str
    created_ns: int


Made = TypeVar("Made", Volume, Snapshot, Group)


def in_force(found: Iterable[Made]) -> Made | None:
    """The object that holds a name now. One that is being deleted has given it up: the name may be used again."""
    return next((item for item in found if item.phase is not Phase.DELETING), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node whose process was started on this state directory once.

    Attributes:
        node_id: its id.
        capacity_bytes: what its volumes may have together.
        max_volumes: attachments that it takes; 0 for no limit.
    """

    node_id: str
    capacity_bytes: int
    max_volumes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """A volume that ControllerPublishVolume gave to a node.

    Attributes:
        volume_id: the volume.
        node_id: the node.
        mode: the access mode asked for.
        readonly: whether the node may only read.
        fingerprint: of the capability.
    """

    volume_id: str
    node_id: str
    mode: int
    readonly: bool
    fingerprint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Staging:
    """A volume that is brought up on a node. Written before the first mount: it says what may be there.

    Attributes:
        volume_id: the volume.
        node_id: the node.
        path: the staging path; without NodeStageVolume one in the state directory.
        mode: the access mode asked for.
        fingerprint: of the capability.
    """

    volume_id: str
    node_id: str
    path: str
    mode: int
    fingerprint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """A volume that is published at a target path. Written before the mount.

    Attributes:
        node_id: the node.
        target: the target path.
        volume_id: the volume.
        mode: the access mode asked for.
        readonly: whether it is published read-only.
        arguments: fingerprint of all that a repeated call must have in common (`access.Use`).
    """

    node_id: str
    target: str
    volume_id: str
    mode: int
    readonly: bool
    arguments: str
