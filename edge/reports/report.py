"""The volume report: one flat entry for each volume of each pod, for people and their scripts.

    waiting, staging, publishing, published     On its way to the pod.
    unpublishing, unstaging                     On its way back.
    uncertain                                   Perhaps mounted for a pod, and the agent cannot resolve it now.
    fenced                                      Its file system is shut down, and not unstaged yet (`edge.fencing`).
    left over                                   Of an earlier time, and the agent may not take it down yet.

`error` is the reason of the last failure, in any state.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any

from common.errors import timestamp
from common.objects.left_over import LeftOver
from common.objects.pod_fact import ToldVolume, VolumeState
from common.observe.metrics import VolumeStats
from common.pages.agent import PodStatus, PodVolumeStatus
from common.pages.json_form import time_of
from edge.disk.found_volumes import Published, Unreadable, published_for
from edge.manager.host import VolumeHost
from edge.manager.steps import Step
from edge.manager.task import VolumeTask
from edge.volume_errors import VolumeError
from edge.volumes import PodVolume
from edge.wanted.places import VOLUME, Target, target_for
from edge.wanted.resolution import PodWants
from edge.wanted.states import Publication, State

_DOING = {
    Step.STAGE: "staging",
    Step.PUBLISH: "publishing",
    Step.UNPUBLISH: "unpublishing",
    Step.UNSTAGE: "unstaging",
}


def report_pod(wants: PodWants, volumes: list[PodVolumeStatus]) -> PodStatus:
    pod = wants.pod
    published = sum(one.state == "published" for one in volumes)
    return PodStatus(namespace=pod.namespace, name=pod.name, uid=pod.uid, volumes=len(volumes), published=published)


def report_wanted(want: PodVolume, task: VolumeTask | None, host: VolumeHost) -> PodVolumeStatus:
    target = target_for(want)
    row = task.rows.publications.get(target) if task is not None else None
    stats = task.upkeep.stats.get(target) if task is not None else None
    since = row.since if row is not None else task.wanted_since(target) if task is not None else 0.0
    published = published_for(want)
    deferral = want.deferral
    # A deferred volume is a block volume to the driver, and to the pod a file system.
    return PodVolumeStatus(
        **_mount(replace(published, block=False) if deferral is not None else published, host),
        namespace=want.pod.namespace,
        pod=want.pod.name,
        volume=want.volume_name,
        state=_state(task, target),
        read_only=want.read_only,
        runtime=row.runtime if row is not None else deferral.runtime if deferral is not None else "",
        since=_time(since),
        error=task.trouble(target) if task is not None else "",
        devices=host.cdi.devices(want) if row is not None and row.state is State.DONE else [],
        **_health(stats, want.volume.size_bytes),
    )


def report_unresolved(wants: PodWants, name: str, since: float) -> PodVolumeStatus:
    pod = wants.pod
    return PodVolumeStatus(
        namespace=pod.namespace,
        pod=pod.name,
        uid=pod.uid,
        volume=name,
        state="waiting",
        since=_time(since),
        error=wants.unresolved[name],
    )


def report_leaving(task: VolumeTask, host: VolumeHost) -> Iterator[PodVolumeStatus]:
    """The entries of one volume's mounts that no resolved volume of a pod accounts for."""
    for target, row in task.rows.publications.items():
        if target in task.wants:
            continue
        wants = host.wanted.of(row.pod_uid)
        if wants is None or wants.pod.gone:
            state = "unpublishing" if host.may_unpublish(row) else "left over"
            why = ""
        else:
            state = "published" if row.state is State.DONE else "uncertain"
            why = wants.unresolved.get(row.volume_name, "")
        yield PodVolumeStatus(
            **_mount(row.guard if row.agent_defers else row, host),
            namespace=row.pod_namespace,
            pod=row.pod_name,
            volume=row.volume_name,
            state=state,
            runtime=row.runtime,
            since=_time(row.since),
            error=task.trouble(target) or why,
        )
    device = task.rows.device
    if device is not None and not (task.rows.publications or task.wants):
        yield PodVolumeStatus(
            state="unstaging" if host.may_unstage(device) else "left over",
            pv=device.name,
            driver=device.driver,
            handle=device.handle,
            mode=_mode(block=device.block),
            since=_time(device.since),
            error=task.trouble(VOLUME),
        )


def report_unreadable(one: Unreadable, since: float) -> PodVolumeStatus:
    return PodVolumeStatus(
        uid=one.pod_uid,
        pv=one.name,
        driver=one.driver,
        mode=_mode(block=one.block),
        state="left over",
        path=str(one.path),
        since=_time(since),
        error=one.reason,
    )


def is_left_over(entry: PodVolumeStatus) -> bool:
    """Whether the entry of a mount without a pod is one that does not go away by itself."""
    return entry.state == "left over" or (entry.state in {"unpublishing", "unstaging"} and bool(entry.error))


def told_left_over(entry: PodVolumeStatus) -> LeftOver:
    return LeftOver(
        driver=entry.driver,
        handle=entry.handle,
        pv=entry.pv,
        pod=f"{entry.namespace}/{entry.pod}" if entry.pod else "",
        why=entry.error,
        since=timestamp(entry.since.timestamp()) if entry.since is not None else "",
    )


def told_volumes(
    wants: PodWants, entries: Iterable[PodVolumeStatus], publications: Iterable[Publication]
) -> tuple[ToldVolume, ...]:
    """A pod's volumes as its fact tells them. Mounted ones that cannot be resolved now have a row but no entry."""
    told = {
        row.volume_name: ToldVolume(
            row.volume_name,
            VolumeState.MOUNTED if row.state is State.DONE else VolumeState.UNKNOWN,
            wants.unresolved.get(row.volume_name, ""),
        )
        for row in publications
        if wants.unresolved.keys() & {row.volume_name, ""}
    }
    for entry in entries:
        state = VolumeState.MOUNTED if entry.state == "published" else VolumeState.WAITING
        why = "" if state is VolumeState.MOUNTED else entry.error
        told[entry.volume] = ToldVolume(entry.volume, state, why)
    return tuple(sorted(told.values()))


def _mount(published: Published, host: VolumeHost) -> dict[str, Any]:
    try:
        path = str(host.plugin.path(published))
    except (ValueError, VolumeError):  # the name cannot be a path, and the publish step reports why
        path = ""
    return {
        "uid": published.pod_uid,
        "pv": "" if published.ephemeral else published.name,
        "driver": published.driver,
        "handle": published.handle,
        "mode": _mode(block=published.block),
        "path": path,
    }


def _state(task: VolumeTask | None, target: Target) -> str:
    if task is None:
        return "waiting"
    published = task.rows.is_published(target)
    if task.doing is not None:
        step, whose = task.doing
        if step in _DOING and (whose == target or (whose == VOLUME and not published)):
            return _DOING[step]
    return "published" if published else "waiting"


def _health(stats: VolumeStats | None, size_bytes: int) -> dict[str, Any]:
    if stats is None:
        return {"size_bytes": size_bytes or None}
    return {
        "size_bytes": stats.capacity_bytes or size_bytes or None,
        "used_bytes": None if stats.is_size_only else stats.used_bytes,
        "abnormal": (stats.message or "abnormal") if stats.abnormal else "",
    }


def _time(since: float) -> datetime | None:
    return time_of(since) if since else None


def _mode(*, block: bool) -> str:
    return "Block" if block else "Filesystem"
