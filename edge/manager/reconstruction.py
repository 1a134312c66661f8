"""The volumes of this node at start, from the stored rows and from the disk.

Rules (docs/csi-contract.md#volumes-found-after-a-restart):

* A row with `DONE` is believed if it was written in this boot and its mount is still there; if it was no mount, its
  vol_data.json must be there. A deferred volume must also be known to its runtime, and with
  `--cdi-dir` a block volume to container engines. Any other row is uncertain, as after a reboot.
* A volume on the disk without a row is uncertain and `reconstructed`, as in the kubelet. If it is published to a pod,
  it may be staged too, unless it is an inline volume.
* Staged volumes that no pod has are found as well (docs/csi-contract.md#staged-volumes-without-a-pod).
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace

from edge.disk.found_volumes import Found, Published, Staged, staged_for
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
    is_deferred: Callable[[Published], bool],
    has_devices: Callable[[Published], bool],
) -> list[Row]:
    """Return the rows to begin with. `now` is the `since` of volumes known from the disk alone.

    `is_deferred` tells whether a runtime knows a deferred volume, `has_devices` the same of container engines.
    """
    on_disk: tuple[Published | Staged, ...] = (*found.published, *found.staged)
    places = {_place(one) for one in on_disk}
    known: dict[object, Row] = {}
    for row in rows:
        stands = is_mounted(row) if row.mount_point else _place(row) in places
        if isinstance(row, Publication):
            stands = stands and (not row.runtime or is_deferred(row)) and has_devices(row)
        believed = row.state is State.UNCERTAIN or (stands and row.boot == boot)
        known[_place(row)] = row if believed else replace(row, state=State.UNCERTAIN)
    for published in found.published:
        if _place(published) not in known:
            log.warning(
                "volume %s may be published to the pod of uid %s: its directory is there, but no record of it",
                published.key,
                published.pod_uid,
            )
            known[_place(published)] = Publication(**asdict(published), reconstructed=True, since=now)
    for row in list(known.values()):
        if isinstance(row, Publication) and row.reconstructed and not row.ephemeral:
            known.setdefault(row.key, _device(staged_for(row), now))
    for staged in found.staged:
        if staged.key not in known:
            log.warning("volume %s may be staged: its directory is there, but no record of it", staged.key)
            known[staged.key] = _device(staged, now)
    return list(known.values())


def _place(what: Published | Staged) -> VolumeKey | tuple[VolumeKey, str, str]:
    return what.key if isinstance(what, Staged) else (what.key, what.pod_uid, what.name)


def _device(staged: Staged, now: float) -> Device:
    # `attached`: until it is unstaged, nobody knows that it needs no listing.
    return Device(**asdict(staged), reconstructed=True, since=now, attached=True)
