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
from collections.abc import Iterable
from dataclasses import asdict, replace

from edge.disk.found_volumes import Found, Published, Staged, staged_for
from edge.manager.host import VolumeHost
from edge.volume_errors import VolumeError
from edge.volumes import VolumeKey
from edge.wanted.states import Device, Publication, Row, State

log = logging.getLogger("csi_bridge.edge.volumes")


async def reconstruct(host: VolumeHost, found: Found, *, now: float) -> list[Row]:
    """Return the rows to begin with. `now` is the `since` of volumes known from the disk alone.

    Raises NotReady if the mount table cannot be read.
    """
    mounts = await host.plugin.mount_table()
    stored = host.states.rows()
    deferred = await _deferred(host, stored)
    on_disk: tuple[Published | Staged, ...] = (*found.published, *found.staged)
    places = {_place(one) for one in on_disk}
    known: dict[object, Row] = {}
    for row in stored:
        stands = host.plugin.is_mounted(row, mounts) if row.mount_point else _place(row) in places
        if isinstance(row, Publication):
            is_deferred = not row.runtime or host.direct().volume_path(row) in deferred
            stands = stands and is_deferred and host.cdi.has(row)
        believed = row.state is State.UNCERTAIN or (stands and row.boot == host.boot)
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


async def sweep(host: VolumeHost, rows: Iterable[Row]) -> None:
    """Remove what runtimes and engines still know of volumes without a row. A publication writes it again."""
    publications = [row for row in rows if isinstance(row, Publication)]
    try:
        if host.may_defer:
            await host.direct().sweep(publications)
        await host.cdi.sweep(row for row in publications if row.state is State.DONE)
    except VolumeError as error:
        log.warning("the runtimes may know volumes that are gone: %s", error.why)


async def _deferred(host: VolumeHost, stored: Iterable[Row]) -> frozenset[str]:
    # A node that never deferred one looks nothing up.
    if not any(isinstance(row, Publication) and row.runtime for row in stored):
        return frozenset()
    try:
        return await host.direct().standing()
    except VolumeError as error:  # the volumes are published again, which tells why
        log.warning("the deferred volumes are not known: %s", error.why)
        return frozenset()


def _place(what: Published | Staged) -> VolumeKey | tuple[VolumeKey, str, str]:
    return what.key if isinstance(what, Staged) else (what.key, what.pod_uid, what.name)


def _device(staged: Staged, now: float) -> Device:
    # `attached`: until it is unstaged, nobody knows that it needs no listing.
    return Device(**asdict(staged), reconstructed=True, since=now, attached=True)
