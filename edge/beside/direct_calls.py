"""A kubelet's call about a direct volume: a volume whose file system the pod's runtime mounts in its guest.

    kubelet ──NodePublishVolume (a file system)──▶ relay ──▶ here ──NodePublishVolume (a block device)──▶ driver
                                                               └──▶ guard at the target, mountInfo.json

Rules:

* A volume is direct if its attributes ask for it when the kubelet stages or publishes it, and as long as a row says so
  (`edge.wanted.states`). The rows are on the disk before the driver is called, and outlast agent, kubelet and reboot.
  Every other call is the driver's.
* For the driver it is a block volume, below a root directory of the agent (`Layout.beside_kubelet`). The kubelet's call
  gives attributes, secrets and the attachment's data.
* The kubelet does not say what a pod's runtime is. The hub's objects do. No pod gets a volume before the hub has told
  of it.
* The kubelet gets a final code only if nothing is begun: after a final code it undoes nothing.
* One call at a time changes a volume. Its work goes on if the caller leaves, and a retry waits for the end.
* A volume that the driver has mounted for the kubelet, at a time without `--direct-runtime`, stays the driver's until
  it is unmounted. No runtime gets it meanwhile.
* A published volume stays as it is, however often the kubelet publishes it. It answers `NodeUnpublishVolume` with OK
  when nothing is left, on the disk too.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

from google.protobuf.message import DecodeError

from common.csi import csi_pb2 as pb
from common.csi.methods import METHODS, PREFIX
from common.csi.volume_context import DIRECT_VOLUME
from common.errors import CallError
from common.observe.metrics import Metrics
from common.status import Code
from edge.beside.node_pods import NodePods
from edge.calls.node_requests import Has, Inputs
from edge.csi_volume_plugin import VolumePlugin
from edge.direct.hand_over import DirectVolumes
from edge.disk.found_volumes import published_for, staged_for
from edge.disk.layout import PLUGIN, Layout
from edge.disk.mounts import GUARD, MountTable, read_table
from edge.disk.own_thread import apart
from edge.disk.root_dir import RootDir
from edge.manager.deferral import VolumeDeferral, handover_fields
from edge.manager.expander import words_for_ungrown
from edge.manager.host import DeferralHost
from edge.manager.rows import VolumeRows
from edge.manager.steps import Step
from edge.registry.driver_registry import DriverRegistry
from edge.settings import AgentSettings
from edge.stores.former_state import DIRECT
from edge.stores.metastore import Metastore
from edge.stores.sync_streams import pods_stream
from edge.volume_errors import NotReady, Uncertain, VolumeError, VolumeRefused, words
from edge.volumes import PodVolume, VolumeKey
from edge.wanted.clock import Clock
from edge.wanted.expansion import plan_expansion
from edge.wanted.opt_in import ANNOTATION, OptIn, is_true
from edge.wanted.places import Places, Target, target_for
from edge.wanted.states import Device, Publication, Row, State, VolumeStates, read_boot

log = logging.getLogger("csi_bridge.edge.volumes")

T = TypeVar("T")


class _Volume:
    """One direct volume: its rows, and the calls about it."""

    def __init__(self, rows: VolumeRows, host: DeferralHost) -> None:
        self.rows = rows
        self.deferral = VolumeDeferral(host, rows)
        self.lock = asyncio.Lock()
        self.calls = 0  # the calls that hold the lock or wait for it

    @property
    def is_over(self) -> bool:
        return self.rows.device is None and not (self.rows.publications or self.rows.unwritten)


class DirectCalls:
    """Answers the calls about direct volumes. `close()` it at the end.

    `streams`: the standing streams that bring the node's pods from the hub.
    """

    def __init__(self, settings: AgentSettings, metrics: Metrics, registry: DriverRegistry) -> None:
        self._state_dir = settings.state_dir / DIRECT
        self._durable = settings.durability == "full"
        self._layout = Layout(settings.root_dir)
        self._root = RootDir(settings.root_dir)
        own_root = self._layout.beside_kubelet
        self._direct = DirectVolumes(settings.root_dir, settings.direct_run_dir, devices=own_root)
        self._drivers = registry
        self._host = DeferralHost(
            plugin=VolumePlugin(own_root, settings.node, registry.find_beside_kubelet, durable=self._durable),
            direct=lambda: self._direct,
            may_defer=True,
            clock=Clock(),
            boot=read_boot(),
            metrics=metrics,
        )
        self._metastore = Metastore(self._state_dir, full=self._durable)
        self.streams = (pods_stream(self._metastore),)
        opt_in = OptIn({runtime.name: runtime for runtime in settings.direct_runtime}, self._layout.real)
        self._pods = NodePods(self._metastore.objects, settings.node, opt_in)
        self._states: VolumeStates | None = None
        self._loading = asyncio.Lock()
        self._trouble = ""
        self._places = Places()
        self._volumes: dict[VolumeKey, _Volume] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._calls: dict[str, Callable[[_Volume, Any], Awaitable[bytes | None]]] = {
            f"{PREFIX}Node/NodeStageVolume": self._stage,
            f"{PREFIX}Node/NodePublishVolume": self._publish,
            f"{PREFIX}Node/NodeUnpublishVolume": self._unpublish,
            f"{PREFIX}Node/NodeUnstageVolume": self._unstage,
            f"{PREFIX}Node/NodeGetVolumeStats": self._stats,
            f"{PREFIX}Node/NodeExpandVolume": self._expand,
        }

    @property
    def problems(self) -> list[str]:
        unwritten = self._trouble or (self._states.trouble if self._states else "") or self._metastore.trouble
        return [f"the agent's record of direct volumes cannot be used: {unwritten}"] if unwritten else []

    # ---- start and close ---------------------------------------------------------------------------------------------

    async def _load(self) -> None:
        """Read the rows once, and what the disk alone shows. Raises NotReady: nobody knows which volumes are direct."""
        async with self._loading:
            if self._states is not None:
                return
            found = await self._host.plugin.scan()  # first, because a failure would leave the rows' file locked
            try:
                states = await asyncio.to_thread(VolumeStates, self._state_dir, durable=self._durable)
            except OSError as error:
                self._trouble = str(error)
                raise NotReady(self._trouble) from error
            self._trouble = ""
            self._states = states
            for row in states.rows():
                self._volume(row.key).rows.add(row)
            for one in found.published:
                if Target(one.pod_uid, one.name) not in (rows := self._volume(one.key).rows).publications:
                    rows.add(Publication(**asdict(one), reconstructed=True))
            for staged in found.staged:
                if (rows := self._volume(staged.key).rows).device is None:
                    rows.add(Device(**asdict(staged), reconstructed=True))

    async def drain(self, limit_s: float) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=limit_s)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._states is not None:
            await self._states.close()
        await self._metastore.close()

    # ---- a call ------------------------------------------------------------------------------------------------------

    async def answer(self, driver: str, method: str, body: bytes) -> bytes | None:
        """Return the answer to a kubelet's call about a direct volume; None if it is the driver's call.

        Raises CallError. Cancelling ends only the waiting.
        """
        if (call := self._calls.get(method)) is None:
            return None
        try:
            request: Any = METHODS[method].request.FromString(body)
        except DecodeError:
            return None
        if self._states is None:
            try:
                await self._to_its_end(self._load(), name="load direct volumes")
            except VolumeError as error:
                raise CallError(error.why) from error
        key = VolumeKey(driver, request.volume_id)
        if key not in self._volumes and not is_true(dict(getattr(request, "volume_context", {})).get(DIRECT_VOLUME)):
            if isinstance(request, pb.NodePublishVolumeRequest):
                self._check_annotation(key, request.target_path)
            return None
        return await self._to_its_end(self._serve(key, call, request), name=f"{method} of {key}")

    async def _to_its_end(self, work: Coroutine[Any, Any, T], *, name: str) -> T:
        # The caller may leave: the work goes on.
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _check_annotation(self, key: VolumeKey, path: str) -> None:
        # There is no silent way to an ordinary mount. The kubelet may be earlier than the hub, so this is no promise.
        target = self._target(path)
        if target is not None and self._pods.asks(key, target.pod_uid):
            raise CallError(
                f"the pod's annotation {ANNOTATION} asks for volume {key}; beside a kubelet, the volume's own "
                f"attribute {DIRECT_VOLUME} has to ask",
                code=Code.FAILED_PRECONDITION,
            )

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        if isinstance(error, CallError | VolumeError):
            log.debug("%s ended: %s", task.get_name(), error)
        else:  # a bug, and the caller may have left
            log.error("%s failed", task.get_name(), exc_info=error)

    async def _serve(
        self, key: VolumeKey, call: Callable[[_Volume, Any], Awaitable[bytes | None]], request: Any
    ) -> bytes | None:
        volume = self._volume(key)
        volume.calls += 1
        try:
            async with volume.lock:
                for target in list(volume.rows.unwritten):
                    await volume.rows.record(target)
                return await call(volume, request)
        except VolumeError as error:
            code = Code.UNAVAILABLE
            if isinstance(error, VolumeRefused) and error.code is not None:
                code = Code(error.code)
            raise CallError(error.why, code=code) from error
        finally:
            volume.calls -= 1
            if volume.is_over and not volume.calls:
                self._volumes.pop(key, None)

    def _volume(self, key: VolumeKey) -> _Volume:
        if key not in self._volumes:
            assert self._states is not None
            self._volumes[key] = _Volume(VolumeRows(key, self._states, self._places), self._host)
        return self._volumes[key]

    # ---- stage and publish -------------------------------------------------------------------------------------------

    async def _stage(self, volume: _Volume, request: pb.NodeStageVolumeRequest) -> bytes | None:
        rows = volume.rows
        if rows.device is None and (await self._mounts()).is_mount_point(Path(request.staging_target_path)):
            return None
        if rows.is_staged and any(row.is_handed(self._host.boot) for row in rows.publications.values()):
            return b""
        with _judged(lambda: rows.device is not None):
            want = _as_asked(self._pods.find(rows.key), request.volume_context)
            await self._make_staged(rows, want, _inputs(request))
        return b""

    async def _make_staged(self, rows: VolumeRows, want: PodVolume, inputs: Inputs) -> None:
        before = rows.device
        staged = staged_for(want.volume)
        if before is not None and before.name != staged.name:
            raise NotReady(f"volume {rows.key} is still staged as PV {before.name}")
        self._check_place(want)
        is_found = _may_stand(before)
        now = self._host.clock.time()
        intent = Device(**asdict(staged), reconstructed=is_found, boot=self._host.boot, since=now)
        await rows.intend(Step.STAGE, intent)
        try:
            await self._host.plugin.stage(want, inputs, reconstructed=is_found)
        except NotReady:  # the driver was not called
            await rows.settle(Step.STAGE, before or intent, gone=before is None)
            raise
        except VolumeRefused:
            is_kept = is_found or bool(rows.publications) or await self._shows(intent)
            await rows.settle(Step.STAGE, intent, gone=not is_kept)
            raise
        await rows.settle(Step.STAGE, replace(intent, state=State.DONE, reconstructed=False))

    async def _publish(self, volume: _Volume, request: pb.NodePublishVolumeRequest) -> bytes | None:
        rows = volume.rows
        target = self._target(request.target_path)
        row = rows.publications.get(target) if target is not None else None
        if row is not None and await self._is_done(row):
            return b""
        mounts = await self._mounts()
        if row is None and mounts.is_mount_point(path := Path(request.target_path)) and not mounts.is_guard(path):
            return None
        with _judged(lambda: target in rows.publications):
            if target is None:
                raise NotReady(f"{request.target_path} is no target of a volume below --root-dir={self._layout.root}")
            want = _as_asked(self._pods.find(rows.key, target.pod_uid), request.volume_context)
            if target != target_for(want):
                raise NotReady(f"the pod's volume {rows.key} is PV {want.volume.name}, not {target.name}")
            if used := self._host_mounts(mounts, target.name):
                raise NotReady(f"volume {rows.key} is mounted on the host, at {used[0]}; delete the pods that have it")
            for other in [it for place, it in rows.publications.items() if place != target]:
                await self._take_from(volume, other)
            await self._check_staged(rows, want)
            try:
                await self._make_published(volume, want, target, _inputs(request))
            except (NotReady, VolumeRefused):
                await self._undo_unused(rows)
                raise
        log.info("volume %s is published to pod %s/%s", rows.key, want.pod.namespace, want.pod.name)
        return b""

    async def _is_done(self, row: Publication) -> bool:
        is_handed = row.state is State.DONE and row.is_handed(self._host.boot)
        return is_handed and self._direct.volume_path(row) in await self._direct.standing()

    async def _take_from(self, volume: _Volume, other: Publication) -> None:
        # Without its guard, its pod has lost it: a reboot, or a kubelet that was set up anew and knows nothing of it.
        if await self._is_mounted(Target(other.pod_uid, other.name)):
            raise NotReady(
                f"volume {other.key} is in use by another pod, {other.pod_namespace}/{other.pod_name}, and a volume "
                f"that the runtime mounts is one pod's alone"
            )
        await self._undo_publication(volume, other)

    async def _check_staged(self, rows: VolumeRows, want: PodVolume) -> None:
        if rows.device is not None:
            return
        if self._stages(rows.key.driver):
            raise NotReady(
                f"volume {rows.key} is not staged for a runtime; delete its pods, and the kubelet stages it anew"
            )
        await self._make_staged(rows, want, Inputs())  # only directories: the kubelet stages nothing either

    async def _make_published(self, volume: _Volume, want: PodVolume, target: Target, inputs: Inputs) -> None:
        rows = volume.rows
        host = self._host
        self._check_place(want)
        before = rows.publications.get(target)
        is_found = _may_stand(before)
        intent = Publication(
            **asdict(published_for(want)),
            pod_namespace=want.pod.namespace,
            pod_name=want.pod.name,
            volume_name=want.volume_name,
            reconstructed=is_found,
            boot=host.boot,
            since=host.clock.time(),
            **handover_fields(want, before, host.boot),
        )
        await rows.intend(Step.PUBLISH, intent)
        try:
            await host.plugin.publish(want, inputs, reconstructed=is_found)
        except NotReady:  # the driver was not called
            await rows.settle(Step.PUBLISH, before or intent, gone=before is None)
            raise
        except VolumeRefused:
            await rows.settle(Step.PUBLISH, intent, gone=not (is_found or await self._shows(intent)))
            raise
        await self._grow_device(want, target)
        fills = await volume.deferral.hand_over(want)
        if fills and rows.device is not None:
            size_bytes = await self._direct.size_bytes(intent)
            await rows.write(replace(rows.device, size_bytes=size_bytes))
        done = replace(rows.publications[target], state=State.DONE, reconstructed=False)
        await rows.settle(Step.PUBLISH, done)

    async def _grow_device(self, want: PodVolume, target: Target) -> None:
        # Before the handover, because after it nobody but the guest may grow the file system. The kubelet expands the
        # volume after its publication: it hears what the driver refuses.
        volume = want.volume
        driver = self._drivers.find_beside_kubelet(volume.driver)
        if driver is None or Has.EXPAND_VOLUME not in driver.capabilities:
            return
        if want.read_only or volume.claim is None or volume.expand_secret is not None:
            return
        plan = plan_expansion(volume.claim, volume_bytes=volume.size_bytes, known_bytes=0, mounting=True)
        if plan is not None and not plan.is_done:
            with suppress(VolumeRefused):
                await self._host.plugin.expand(volume, target.pod_uid, Inputs(), required_bytes=plan.required_bytes)

    # ---- unpublish and unstage ---------------------------------------------------------------------------------------

    async def _unpublish(self, volume: _Volume, request: pb.NodeUnpublishVolumeRequest) -> bytes | None:
        rows = volume.rows
        target = self._target(request.target_path)
        if target is None:
            return None
        row = rows.publications.get(target)
        if row is not None:
            await self._undo_publication(volume, row)
        elif rows.device is None or await self._is_mounted(target):
            return None
        # Also if there is no row: the kubelet repeats a call whose answer it has lost.
        await self._undo_unused(rows)
        return b""

    async def _undo_publication(self, volume: _Volume, row: Publication) -> None:
        rows = volume.rows
        await rows.intend(Step.UNPUBLISH, replace(row, state=State.UNCERTAIN, error=""))
        await volume.deferral.take_back(row)
        await self._host.plugin.unpublish(row)
        await apart(Uncertain, self._root.remove_dir, self._layout.target(row.pod_uid, row.name))
        await self._settle_gone(Step.UNPUBLISH, rows, row)
        log.info("volume %s is no longer published to the pod of uid %s", rows.key, row.pod_uid)

    async def _unstage(self, volume: _Volume, _request: pb.NodeUnstageVolumeRequest) -> bytes | None:
        rows = volume.rows
        if rows.device is None:
            return None
        if rows.publications:
            raise Uncertain(f"volume {rows.key} is still published to a pod")
        await self._undo_staging(rows, rows.device)
        return b""

    async def _undo_unused(self, rows: VolumeRows) -> None:
        if rows.device is not None and not rows.publications and not self._stages(rows.key.driver):
            await self._undo_staging(rows, rows.device)  # the kubelet unstages nothing

    async def _undo_staging(self, rows: VolumeRows, device: Device) -> None:
        await rows.intend(Step.UNSTAGE, replace(device, state=State.UNCERTAIN, error=""))
        await self._host.plugin.unstage(device, recorded=not device.reconstructed)
        await self._settle_gone(Step.UNSTAGE, rows, device)

    async def _settle_gone(self, step: Step, rows: VolumeRows, row: Device | Publication) -> None:
        await rows.settle(step, row, gone=True)
        for target in list(rows.unwritten):
            await rows.record(target)  # a row that stayed would keep the volume from other pods after a restart

    # ---- usage and growth --------------------------------------------------------------------------------------------

    async def _stats(self, volume: _Volume, request: pb.NodeGetVolumeStatsRequest) -> bytes | None:
        row = self._row(volume.rows, request.volume_path)
        if row is None:
            return None
        stats = await self._direct.stats(row)
        if stats.is_size_only:  # a kubelet would take counts that are missing for a full disk
            raise Uncertain(f"the usage of volume {row.key} is not known: its runtime does not tell it")
        usage = [
            pb.VolumeUsage(
                unit=pb.VolumeUsage.BYTES,
                available=stats.available_bytes,
                total=stats.capacity_bytes,
                used=stats.used_bytes,
            ),
            pb.VolumeUsage(
                unit=pb.VolumeUsage.INODES, available=stats.inodes_free, total=stats.inodes, used=stats.inodes_used
            ),
        ]
        return pb.NodeGetVolumeStatsResponse(usage=usage).SerializeToString()

    async def _expand(self, volume: _Volume, request: pb.NodeExpandVolumeRequest) -> bytes | None:
        rows = volume.rows
        row = self._row(rows, request.volume_path)
        if row is None:
            return None
        want = self._pods.find(rows.key, row.pod_uid)
        required_bytes = request.capacity_range.required_bytes
        inputs = Inputs(secrets=dict(request.secrets))
        await self._host.plugin.expand(want.volume, row.pod_uid, inputs, required_bytes=required_bytes)
        size_bytes = await self._direct.size_bytes(row)
        if rows.device is None or rows.device.size_bytes < size_bytes:
            # The kubelet neither repeats it while the volume is in use, nor keeps the pod from starting.
            raise VolumeRefused(words_for_ungrown(want), code=Code.FAILED_PRECONDITION)
        return pb.NodeExpandVolumeResponse(capacity_bytes=size_bytes).SerializeToString()

    # ---- parts of several --------------------------------------------------------------------------------------------

    async def _is_mounted(self, target: Target) -> bool:
        mounts = await self._host.plugin.mount_table()
        return mounts.is_mount_point(self._layout.real.target(*target))  # as the kernel writes it

    def _stages(self, name: str) -> bool:
        driver = self._drivers.find_beside_kubelet(name)
        return driver is None or Has.STAGE_UNSTAGE_VOLUME in driver.capabilities

    async def _mounts(self) -> MountTable:
        try:
            return await asyncio.to_thread(read_table, self._layout.root)
        except OSError as error:
            raise NotReady(words(error)) from error

    def _host_mounts(self, mounts: MountTable, name: str) -> list[str]:
        # Where the driver has mounted a volume of this name for pods.
        pods = self._layout.real.pods
        found = (Path(mount.path) for mount in mounts.mounts if mount.source != GUARD)
        return [
            str(path) for path in found
            if path.is_relative_to(pods) and path.relative_to(pods).parts[1:] == ("volumes", PLUGIN, name, "mount")
        ]  # fmt: skip

    async def _shows(self, row: Row) -> bool:
        # If the table cannot be read, the mount may be there.
        try:
            return self._host.plugin.has_mounts(row, await self._host.plugin.mount_table())
        except NotReady:
            return True

    def _check_place(self, want: PodVolume) -> None:
        # A driver that finds a mount at a staging path may take the earlier volume's device for this one's.
        if (holder := self._places.holder(want)) is not None:
            raise NotReady(f"another volume is still mounted in the place of {want.volume.name}: {holder}")

    def _row(self, rows: VolumeRows, path: str) -> Publication | None:
        target = self._target(path)
        return rows.publications.get(target) if target is not None else None

    def _target(self, path: str) -> Target | None:
        parts = Path(path).parts
        depth = len(self._layout.pods.parts)
        if len(parts) <= depth + 3:
            return None
        target = Target(parts[depth], parts[-2])
        try:
            is_ours = str(self._layout.target(*target)) == path
        except VolumeError:
            return None
        return target if is_ours else None


@contextmanager
def _judged(begun: Callable[[], bool]) -> Iterator[None]:
    # A final code only if nothing is begun.
    try:
        yield
    except (NotReady, VolumeRefused) as error:
        if begun():
            raise Uncertain(error.why) from error
        raise VolumeRefused(error.why, code=error.code or Code.FAILED_PRECONDITION) from error


def _may_stand(before: Row | None) -> bool:
    # A refusal does not undo what an earlier call has done.
    return before is not None and (before.reconstructed or before.state is State.DONE)


def _as_asked(want: PodVolume, context: Any) -> PodVolume:
    # The driver gets the kubelet's words, not the hub's. With podInfoOnMount they have the pod's names already.
    rules = replace(want.volume.rules, pod_info=False)
    return replace(want, volume=replace(want.volume, attributes=dict(context), rules=rules))


def _inputs(request: Any) -> Inputs:
    return Inputs(dict(request.publish_context), dict(request.secrets))
