"""A reconstruction: what is known of this node's volumes at start, from the states and from what lies on disk.

* A row that says `DONE` is believed if it was written in this boot, and what it made is still there: its mount, if it
  was one, else its vol_data.json. Otherwise it is uncertain, as after a reboot.
* What lies on disk and is in no row is uncertain and `reconstructed`, as for the kubelet (contract.md C.9); and where a
  pod has a volume that stages, it may be staged. Staged volumes that no pod has are found as well (RULE C17).
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace

from edge.disk.found_volumes import Found, Published, Staged
from edge.manager.rows import published_of, staged_of
from edge.manager.states import Device, Publication, Row, State
from edge.volumes import VolumeKey

log = logging.getLogger("csi_bridge.edge.volumes")


def reconstruct(
    rows: Iterable[Row],
    found: Found,
    *,
    boot: str,
    now: float,
    is_mounted: Callable[[Published | Staged], bool],
    attach_required: Callable[[str], bool],
) -> list[Row]:
    """The rows to begin with.

    Args:
        rows: those that were written.
        found: what lies on disk.
        boot: the id of the machine's present boot.
        now: seconds since the epoch: since then what only the disk tells is known.
        is_mounted: whether there is a mount at something's target.
        attach_required: whether a driver's volumes need an attachment, as far as is known.
    """
    on_disk: tuple[Published | Staged, ...] = (*found.published, *found.staged)
    places = {_place(one) for one in on_disk}
    known: dict[object, Row] = {}
    for row in rows:
        what = staged_of(row) if isinstance(row, Device) else published_of(row)
        stands = is_mounted(what) if row.mount_point else _place(what) in places
        believed = row.state is State.UNCERTAIN or (stands and row.boot == boot)
        known[_place(what)] = row if believed else replace(row, state=State.UNCERTAIN)
    for published in found.published:
        if _place(published) not in known:
            log.warning(
                "volume %s may be published to the pod of uid %s: its directory is there, but no record of it",
                published.key,
                published.pod_uid,
            )
            known[_place(published)] = _publication(published, now)
    for row in list(known.values()):
        if isinstance(row, Publication) and row.reconstructed and not row.ephemeral:
            staged = Staged(driver=row.driver, handle=row.handle, name=row.name, block=row.block)
            known.setdefault(row.key, _device(staged, now, attach_required))
    for staged in found.staged:
        if staged.key not in known:
            log.warning("volume %s may be staged: its directory is there, but no record of it", staged.key)
            known[staged.key] = _device(staged, now, attach_required)
    return list(known.values())


def _place(what: Published | Staged) -> VolumeKey | tuple[VolumeKey, str, str]:
    return what.key if isinstance(what, Staged) else (what.key, what.pod_uid, what.name)


def _publication(published: Published, now: float) -> Publication:
    return Publication(
        driver=published.driver,
        handle=published.handle,
        name=published.name,
        pod_uid=published.pod_uid,
        block=published.block,
        ephemeral=published.ephemeral,
        reconstructed=True,
        since=now,
    )


def _device(staged: Staged, now: float, attach_required: Callable[[str], bool]) -> Device:
    return Device(
        driver=staged.driver,
        handle=staged.handle,
        name=staged.name,
        block=staged.block,
        reconstructed=True,
        since=now,
        attached=attach_required(staged.driver),
    )
