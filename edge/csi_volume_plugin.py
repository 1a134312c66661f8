"""The steps on a CSI volume on this node: directories, vol_data.json, and calls of the vendor's driver.

The steps make the calls of kubernetes' pkg/volume/csi, with the same fields, paths and modes
(docs/csi-contract.md#the-order-of-node-calls, docs/csi-contract.md#the-kubelets-directories).

Rules:

* One coroutine is one step. The caller runs one step at a time for each volume, and stores its result.
* `NotReady`: the driver was not called. `Uncertain`: the driver may have done it, and the directories stay.
  `VolumeRefused`: the driver surely has not done it. The directories made for the step are removed, unless something is
  mounted there.
* A cancelled step is as uncertain as one that timed out: the driver may go on.
* Unpublishing and unstaging need no Kubernetes object: vol_data.json is enough, and it is removed last
  (docs/csi-contract.md#vol_datajson-comes-first-and-goes-last).
* No driver gets a path below the root directory that leads through a symbolic link. A link at the target itself is
  removed before the call. Whoever can replace these directories during a call has the rights of root or of a driver.
* A driver's OK does not count if the node shows otherwise: the target is missing, or the mount is still there.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import ParamSpec, TypeVar

from google.protobuf.message import Message

from common.csi import csi_pb2 as pb
from common.csi.redact import STRIPPED
from common.errors import CallError
from common.observe.metrics import VolumeStats
from common.status import Code, code_name
from common.store.fault_points import reach
from edge.calls import node_requests
from edge.calls.node_requests import Has, Inputs
from edge.disk import ownership
from edge.disk.block_devices import BlockDevices
from edge.disk.found_volumes import Found, Published, Staged, Unreadable, published_for, scan, staged_for
from edge.disk.layout import Layout
from edge.disk.mounts import MountTable, read_table
from edge.disk.own_thread import apart
from edge.disk.ownership import MayGoOn, always
from edge.disk.root_dir import RootDir
from edge.disk.volume_dirs import VolumeDirs
from edge.registry.drivers_store import NodeDriver
from edge.volume_errors import NON_FINAL, NotReady, Uncertain, VolumeError, VolumeRefused, words
from edge.volumes import PodVolume, Volume

CALL_TIMEOUT_S = 120.0  # the limit of each call (the kubelet's csiTimeout)

# Characters that are shown of a driver's error: an event holds 1,024 bytes, and a driver may answer with megabytes.
LONGEST_MESSAGE = 1_000

# Shorter secrets are not removed from a driver's error: removing every `rw` would make the error unreadable.
_SHORTEST_HIDDEN = 6

P = ParamSpec("P")
T = TypeVar("T")


class VolumePlugin:
    """Runs the steps on CSI volumes below one root directory."""

    def __init__(
        self,
        root: Path,  # as drivers know it: symbolic links in it are not resolved
        node: str,
        find_driver: Callable[[str], NodeDriver | None],
        *,
        durable: bool = False,  # vol_data.json survives a power cut
        # Whether the driver has told the pod's runtime to mount a volume. Its files are then not here, and the guest
        # gives them to the pod's fsGroup.
        is_deferred: Callable[[Published], Awaitable[bool]] | None = None,
    ) -> None:
        self.layout = Layout(root)
        self._root = RootDir(root, durable)
        self._dirs = VolumeDirs(self._root, node)
        self._devices = BlockDevices(self._root, self.layout)
        self._find_driver = find_driver
        self._is_deferred = is_deferred

    # ---------------------------------------------------------------- stage and publish

    async def stage(
        self,
        wanted: PodVolume,
        inputs: Inputs,
        *,
        reconstructed: bool = False,
        may_go_on: MayGoOn = always,
    ) -> None:
        """Stage a volume for its first pod: NodeStageVolume, if the driver stages. Not for inline volumes.

        If the volume is `reconstructed`, it is known from the disk alone. Then a refusal does not prove that nothing is
        staged, and the directories stay. `may_go_on` tells whether the request may leave for the driver.
        """
        volume = wanted.volume
        assert not volume.ephemeral
        driver = self._driver(volume.driver)
        stages = Has.STAGE_UNSTAGE_VOLUME in driver.capabilities
        staged = staged_for(volume)
        target = str(self._dirs.target(staged))
        request = node_requests.stage(wanted, target, driver.capabilities, inputs)
        await _locally(NotReady, self._dirs.prepare_stage, wanted, stages=stages)
        if not stages:
            return
        try:
            hidden = node_requests.sensitive(volume, inputs)
            await self._call(driver, "stage", request, hidden, may_begin=may_go_on)
        except VolumeRefused:
            if not reconstructed:
                await asyncio.to_thread(self._dirs.tidy_refused_stage, staged)
            raise

    async def publish(
        self,
        wanted: PodVolume,
        inputs: Inputs,
        *,
        reconstructed: bool = False,
        tell: Callable[[str], None] | None = None,
        may_go_on: MayGoOn = always,
    ) -> None:
        """Publish a volume into a pod's directory: NodePublishVolume, then fsGroup or the block device's map.

        A refresh of a published volume (`requiresRepublish`) is `reconstructed`, too: its directories stay. `may_go_on`
        is as for `stage`, and also tells whether a further file may be changed.
        `tell` gets the text of a VolumePermissionChangeInProgress event while changing ownership takes long.
        """
        volume = wanted.volume
        uid = wanted.pod.uid
        driver = self._driver(volume.driver)
        published = published_for(wanted)
        target = self._dirs.target(published)
        staging = self._published_from(volume, driver)
        request = node_requests.publish(wanted, str(target), staging, driver.capabilities, inputs)
        await _locally(NotReady, self._dirs.prepare_publish, wanted, target)
        try:
            hidden = node_requests.sensitive(volume, inputs)
            await self._call(driver, "publish", request, hidden, may_begin=may_go_on)
        except VolumeRefused:
            if not reconstructed and not volume.block:
                await asyncio.to_thread(self._dirs.tidy_refused_publish, published)
            raise
        await _locally(Uncertain, self._dirs.require_target, driver.name, target, block=volume.block)
        if volume.block:
            await apart(Uncertain, self._devices.map, volume.name, uid)
        elif node_requests.wants_fs_group(wanted, driver.capabilities) and not (
            self._is_deferred is not None and await self._is_deferred(published)
        ):
            await self._give_to_group(wanted, target, tell, may_go_on)

    def _published_from(self, volume: Volume, driver: NodeDriver) -> str:
        # A block volume has a staging path under any driver.
        stages = Has.STAGE_UNSTAGE_VOLUME in driver.capabilities and not volume.ephemeral
        return str(self._dirs.target(staged_for(volume))) if volume.block or stages else ""

    async def _give_to_group(
        self, wanted: PodVolume, target: Path, tell: Callable[[str], None] | None, may_go_on: MayGoOn
    ) -> None:
        pod = wanted.pod
        assert pod.fs_group is not None
        reach("publish.before-ownership")
        try:
            await ownership.give(
                target,
                pod.fs_group,
                within=self._root,
                on_root_mismatch=pod.fs_group_on_root_mismatch,
                tell=tell,
                may_go_on=may_go_on,
            )
        except OSError as error:
            raise Uncertain(
                f"the files of {target} could not be given to the pod's fsGroup {pod.fs_group}: {words(error)}"
            ) from error
        reach("publish.after-ownership")

    # ---------------------------------------------------------------- unpublish and unstage

    async def unpublish(self, published: Published) -> None:
        """Undo `publish`, also one that failed half-way. After any error the step must be repeated.

        The driver is called even if nothing is mounted: an earlier NodePublishVolume may have timed out.
        """
        target = self._dirs.target(published)
        await _locally(NotReady, self._dirs.clear_way, target)
        if published.block:
            await apart(Uncertain, self._devices.unmap, published.name, published.pod_uid)
        try:
            driver = self._driver(published.driver)
        except NotReady as error:
            if published.block:
                raise Uncertain(str(error)) from error  # half of the step is done
            raise
        request = pb.NodeUnpublishVolumeRequest(volume_id=published.handle, target_path=str(target))
        await self._call(driver, "unpublish", request)
        await _locally(Uncertain, self._dirs.tidy_published, published)
        reach("unpublish.after-clean")

    async def unstage(self, staged: Staged, *, recorded: bool = True) -> None:
        """Undo `stage`: NodeUnstageVolume, if the driver stages. After any error the step must be repeated.

        If a row says that it is staged or may be (`recorded`), the driver is called even without vol_data.json
        (docs/csi-contract.md#staged-volumes-without-a-pod). Otherwise a missing vol_data.json means that nothing was
        staged, as for the kubelet, unless a mount is there.
        """
        await _locally(NotReady, self._dirs.require_unused, staged)
        asked = False
        mounted = self.is_mounted(staged, await self.mount_table())
        if recorded or mounted or await _locally(NotReady, self._dirs.may_be_staged, staged):
            driver = self._driver(staged.driver)
            if asked := Has.STAGE_UNSTAGE_VOLUME in driver.capabilities:
                target = self._dirs.target(staged)
                await _locally(NotReady, self._dirs.clear_way, target)
                request = pb.NodeUnstageVolumeRequest(volume_id=staged.handle, staging_target_path=str(target))
                await self._call(driver, "unstage", request)
            elif mounted:
                raise NotReady(
                    f"{staged.key} is still mounted, and driver {driver.name} has no capability STAGE_UNSTAGE_VOLUME "
                    f"to unstage it with; check whether this driver staged it"
                )
        await _locally(Uncertain, self._dirs.tidy_staged, staged, asked=asked)
        reach("unstage.after-clean")

    # ---------------------------------------------------------------- expand and read

    async def expand(
        self,
        volume: Volume,
        pod_uid: str,
        inputs: Inputs,
        *,
        required_bytes: int,
        may_go_on: MayGoOn = always,
    ) -> None:
        """Call NodeExpandVolume at a pod's mount, if `may_go_on` allows it then."""
        driver = self._driver(volume.driver)
        if Has.EXPAND_VOLUME not in driver.capabilities:
            raise VolumeRefused(
                f"driver {driver.name} cannot expand volumes on a node (no capability EXPAND_VOLUME)",
                code=Code.UNIMPLEMENTED,
            )
        if volume.block:
            path = await apart(NotReady, self._devices.device, volume.name, pod_uid)
        else:
            path = str(self.layout.target(pod_uid, volume.name))
            await _locally(NotReady, self._dirs.clear_way, Path(path))
        staging = self._dirs.target(staged_for(volume))
        request = node_requests.expand(
            volume, path, str(staging), driver.capabilities, inputs, required_bytes=required_bytes
        )
        hidden = node_requests.sensitive(volume, inputs)
        answer = await self._call(driver, "expand", request, hidden, may_begin=may_go_on)
        _understood(driver, "NodeExpandVolume", node_requests.check_expanded, answer)

    async def stats(self, published: Published) -> VolumeStats | None:
        """Return usage and health, as far as the driver has the capabilities; None without any of them."""
        driver = self._driver(published.driver)
        found: VolumeStats | None = None
        if Has.GET_VOLUME_STATS in driver.capabilities:
            path = str(self._mount_point(published))
            request = pb.NodeGetVolumeStatsRequest(volume_id=published.handle, volume_path=path)
            answer = await self._call(driver, "stats", request)
            found = _understood(driver, "NodeGetVolumeStats", node_requests.read_stats, answer, driver.capabilities)
            if found is None:
                raise VolumeRefused(f"driver {driver.name} answered NodeGetVolumeStats without any usage")
        if Has.GET_VOLUME_HEALTH not in driver.capabilities:
            return found
        abnormal, message = await self._health(driver, published)
        return replace(found or VolumeStats(), abnormal=abnormal, message=message)

    async def _health(self, driver: NodeDriver, published: Published) -> tuple[bool, str]:
        staging = ""
        if Has.STAGE_UNSTAGE_VOLUME in driver.capabilities and not published.ephemeral:
            staging = str(self._dirs.target(staged_for(published)))
        path = str(self._dirs.target(published))
        request = pb.NodeGetVolumeHealthRequest(
            volume_id=published.handle, volume_publish_path=path, staging_target_path=staging
        )
        answer = await self._call(driver, "health", request)
        return _understood(driver, "NodeGetVolumeHealth", node_requests.read_health, answer)

    # ---------------------------------------------------------------- find

    async def scan(self) -> Found:
        """Return the volumes that have directories on the disk. No path that may be a dead mount is stat'ed."""
        found = await _locally(NotReady, scan, self._root)
        self._dirs.forget_gone(found.unreadable)
        return found

    async def mount_table(self) -> MountTable:
        return await _locally(NotReady, read_table, self.layout.root)

    def is_mounted(self, what: Published | Staged, mounts: MountTable) -> bool:
        """Whether it is mounted at its target; a block volume of a pod, at its device map."""
        return mounts.is_mount_point(self._mount_point(what))

    def has_mounts(self, what: Published | Staged, mounts: MountTable) -> bool:
        # The device map is made after the driver has published. A publication whose answer was lost has only a target.
        return self.is_mounted(what, mounts) or mounts.is_mount_point(self._dirs.target(what))

    def _mount_point(self, what: Published | Staged) -> Path:
        if isinstance(what, Published) and what.block:
            return self.layout.device_map(what.name, what.pod_uid)
        return self._dirs.target(what)

    def path(self, published: Published) -> Path:
        if published.block:
            return self.layout.device_link(published.pod_uid, published.name)
        return self._dirs.target(published)

    async def clean_leftovers(self, published: Published | Unreadable) -> bool:
        """Remove the empty directories and the agent's files of a guard or of an unknown volume.

        vol_data.json is removed too, so the driver must have nothing there. Nothing is removed where anything is
        mounted or held by a loop device, and no other file is. Returns whether nothing is left of it.
        """
        return await _locally(NotReady, self._dirs.clean_leftovers, published)

    # ---------------------------------------------------------------- helpers

    def _driver(self, name: str) -> NodeDriver:
        driver = self._find_driver(name)
        if driver is None:
            raise NotReady(
                f"driver {name} is not registered on this node; check that its pod and its node-driver-registrar run"
            )
        return driver

    async def _call(
        self,
        driver: NodeDriver,
        step: str,
        request: Message,
        hidden: Iterable[str] = (),
        *,
        may_begin: MayGoOn | None = None,
    ) -> bytes:
        method = type(request).__name__.removesuffix("Request")
        body = request.SerializeToString(deterministic=True)
        reach(f"{step}.before-call")
        try:
            status, answer = await driver.call(
                f"/csi.v1.Node/{method}", body, timeout_s=CALL_TIMEOUT_S, may_begin=may_begin
            )
        except CallError as error:
            text = _shown(str(error), hidden)
            raise Uncertain(text, code=Code.UNAVAILABLE if error.is_unsent else None) from error
        reach(f"{step}.after-call")
        if status.ok:
            return answer or b""
        said = f"driver {driver.name} answered {method} with {code_name(status.code)}: {_shown(status.message, hidden)}"
        if status.code not in NON_FINAL:
            raise VolumeRefused(said, code=status.code)
        raise Uncertain(said, code=status.code)


async def _locally(blame: type[VolumeError], work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    try:
        return await asyncio.to_thread(work, *args, **kwargs)
    except OSError as error:
        raise blame(words(error)) from error


def _understood(driver: NodeDriver, method: str, read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    try:
        return read(*args, **kwargs)
    except ValueError as error:
        raise Uncertain(f"driver {driver.name} answered {method} with OK, but {error}") from error


def _shown(message: str, hidden: Iterable[str]) -> str:
    for value in sorted(hidden, key=len, reverse=True):
        if len(value) >= _SHORTEST_HIDDEN:
            message = message.replace(value, STRIPPED)
    if len(message) <= LONGEST_MESSAGE:
        return message
    return f"{message[:LONGEST_MESSAGE]}… ({len(message)} characters in all; the driver's log has them)"
