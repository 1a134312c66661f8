"""The GroupController service: snapshots of several volumes under one name, all of them or none."""

import json
import logging
import time
from collections.abc import Iterable
from dataclasses import replace

from common.csi import csi_pb2 as pb
from examples.dirdriver import errors
from tests.kit.testdriver import names, snapshots
from tests.kit.testdriver.answers import group_message
from tests.kit.testdriver.calls import Routes
from tests.kit.testdriver.driver import Driver, ready_volume
from tests.kit.testdriver.records import Group, Phase, Snapshot, Volume, in_force

log = logging.getLogger("dirdriver.groups")


class Groups:
    """csi.v1.GroupController."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def routes(self) -> Routes:
        """The methods of this service."""
        return {
            "GroupControllerGetCapabilities": self.get_capabilities,
            "CreateVolumeGroupSnapshot": self.create,
            "DeleteVolumeGroupSnapshot": self.delete,
            "GetVolumeGroupSnapshot": self.get,
        }

    def get_capabilities(
        self, _request: pb.GroupControllerGetCapabilitiesRequest
    ) -> pb.GroupControllerGetCapabilitiesResponse:
        """The one capability that there is."""
        rpc = pb.GroupControllerServiceCapability.RPC
        kind = rpc.CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT
        return pb.GroupControllerGetCapabilitiesResponse(
            capabilities=[pb.GroupControllerServiceCapability(rpc=rpc(type=kind))]
        )

    def create(self, request: pb.CreateVolumeGroupSnapshotRequest) -> pb.CreateVolumeGroupSnapshotResponse:
        """Take a snapshot of each volume; a group that has the name is the answer if its volumes are the same."""
        driver = self._driver
        name = names.require_name(request.name, limits=driver.settings.limits)
        if not request.source_volume_ids:
            raise errors.invalid("source_volume_ids is missing: the CSI spec requires it")
        sources = json.dumps(sorted(set(request.source_volume_ids)))
        group = Group(
            group_id=names.new_id("group"),
            name=name,
            phase=Phase.CREATING,
            owner=driver.node,
            sources=sources,
            created_ns=time.time_ns(),
        )
        with driver.state.writing() as tables:
            found = in_force(tables.groups.all(name=name))
            if found is None:
                volumes = [ready_volume(tables, volume_id) for volume_id in json.loads(sources)]
                members = [snapshots.planned(driver, volume, name, group_id=group.group_id) for volume in volumes]
                tables.groups.put(group)
                for member in members:
                    tables.snapshots.put(member)
        if found is not None:
            return self._known(found, sources) or self.create(request)
        self._take(group, list(zip(volumes, members, strict=True)))
        log.info("created %s of %d volumes", group.group_id, len(volumes))
        return pb.CreateVolumeGroupSnapshotResponse(group_snapshot=self._message(group))

    def _take(self, group: Group, pairs: list[tuple[Volume, Snapshot]]) -> None:
        """Copy every volume, then make all members and the group READY at once."""
        try:
            for volume, member in pairs:
                snapshots.take(self._driver, volume, member)
        except BaseException:
            self._forget(group)
            raise
        with self._driver.state.writing() as tables:
            for _volume, member in pairs:
                tables.snapshots.put(replace(member, phase=Phase.READY))
            tables.groups.put(replace(group, phase=Phase.READY))

    def _known(self, found: Group, sources: str) -> pb.CreateVolumeGroupSnapshotResponse | None:
        """The answer that is there already; None if it was only half made, and is gone now."""
        if found.sources != sources:
            raise errors.already_exists(f"a group snapshot of this name exists as {found.group_id}, of other volumes")
        if not self._driver.is_made(found, lambda: self._forget(found)):
            return None
        return pb.CreateVolumeGroupSnapshotResponse(group_snapshot=self._message(found))

    def _forget(self, group: Group) -> None:
        """Remove a group: its members' data, their records, its own. Can be repeated after a crash in the middle."""
        for member in self._members(group):
            self._driver.forget(member)
        with self._driver.state.writing() as tables:
            tables.groups.delete(group_id=group.group_id)

    def delete(self, request: pb.DeleteVolumeGroupSnapshotRequest) -> pb.DeleteVolumeGroupSnapshotResponse:
        """Remove a group and its members; OK if there is none (CSI spec)."""
        driver = self._driver
        group_id = names.require("group_snapshot_id", request.group_snapshot_id)
        with driver.state.writing() as tables:
            group = tables.groups.get(group_id=group_id)
            if group is None:
                return pb.DeleteVolumeGroupSnapshotResponse()
            members = tables.snapshots.all(group_id=group_id)
            _check_members(request.snapshot_ids, members)
            for member in members:
                snapshots.check_not_copied(tables, member.snapshot_id)
                tables.snapshots.put(replace(member, phase=Phase.DELETING, owner=driver.node))
            tables.groups.put(replace(group, phase=Phase.DELETING, owner=driver.node))
        self._forget(group)
        log.info("deleted %s", group_id)
        return pb.DeleteVolumeGroupSnapshotResponse()

    def get(self, request: pb.GetVolumeGroupSnapshotRequest) -> pb.GetVolumeGroupSnapshotResponse:
        """One group with its members."""
        group_id = names.require("group_snapshot_id", request.group_snapshot_id)
        with self._driver.state.reading() as tables:
            group = tables.groups.get(group_id=group_id, phase=Phase.READY)
        if group is None:
            raise errors.not_found(f"group snapshot {group_id} does not exist")
        _check_members(request.snapshot_ids, self._members(group))
        return pb.GetVolumeGroupSnapshotResponse(group_snapshot=self._message(group))

    def _members(self, group: Group) -> list[Snapshot]:
        with self._driver.state.reading() as tables:
            return tables.snapshots.all(group_id=group.group_id)

    def _message(self, group: Group) -> pb.VolumeGroupSnapshot:
        return group_message(self._driver, group, self._members(group))


def _check_members(asked: Iterable[str], members: list[Snapshot]) -> None:
    """Refuse a list of members that is not the group's (CSI spec); an empty one passes, as csi-sanity sends it."""
    ids = set(asked)
    if ids and ids != {member.snapshot_id for member in members}:
        raise errors.invalid("snapshot_ids are not the members of this group snapshot")
