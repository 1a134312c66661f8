"""The StorageClasses: whether one names a driver that the hub does not know.

A cluster has StorageClasses for other storage, too, so a name that the hub does not know is no mistake by itself. It is
reported in two cases only:

* It is almost the name of a driver that the hub knows, and there is no CSIDriver object of that name: a typing error.
  Two products of one vendor (ebs.csi.aws.com, efs.csi.aws.com) have a CSIDriver each.
* A claim waits for it on a node that the hub knows, and has waited for longer than any provisioner takes to begin. With
  a CSIDriver object of that name it may be another product's, which fails by itself: that is a warning.
"""

import datetime as dt
from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from cli.doctor.finding import Finding, listed, ok, warning, wrong

_SIMILAR = 0.8
"""difflib's ratio: at most two letters of twelve differ."""

_PATIENCE_S = 120.0

_SELECTED_NODE = "volume.kubernetes.io/selected-node"
"""The scheduler's annotation of a claim whose class waits for the first pod."""


def check_classes(
    classes: Sequence[Mapping[str, Any]],
    drivers: Collection[str],
    *,
    objects: Collection[str] = (),
    claims: Sequence[Mapping[str, Any]] = (),
    nodes: Collection[str] = (),
    now: float,
) -> Finding:
    """Whether the classes that are meant for the bridge name its drivers.

    Args:
        classes: the StorageClasses.
        drivers: the names of the drivers that the hub knows.
        objects: the names of the CSIDriver objects.
        claims: the PersistentVolumeClaims.
        nodes: the names of the nodes that the hub knows.
        now: in seconds since the epoch.
    """
    if not drivers:
        return ok("no driver is known here, so the StorageClasses are not looked at")
    provisioners = {it["metadata"]["name"]: str(it.get("provisioner", "")) for it in classes}
    strange = {name: provisioner for name, provisioner in provisioners.items() if provisioner not in drivers}
    typos = {name: provisioner for name, provisioner in strange.items() if provisioner not in objects}
    found = [*_typos(typos, drivers), *_waiting(typos, claims, nodes, now)]
    if found:
        return wrong(
            "; ".join(found),
            "make the StorageClass anew with the driver's own name as provisioner (it cannot be changed), and the "
            "claims that wait; or start the driver of that name and its csi-bridge driver",
        )
    others = {name: provisioner for name, provisioner in strange.items() if provisioner in objects}
    if slow := list(_waiting(others, claims, nodes, now)):
        return warning(
            "; ".join(slow),
            "look at the log of that provisioner, if it is another product's; if it is to be the bridge's, start its "
            "driver and its csi-bridge driver",
        )
    named = sorted(name for name in provisioners if name not in strange)
    if not named:
        return ok("no StorageClass names a driver of this hub; only volumes made by hand need none")
    return ok(f"StorageClasses that name a driver of this hub: {listed(named)}")


def _typos(strange: Mapping[str, str], drivers: Collection[str]) -> Iterator[str]:
    by_letters = {driver.lower(): driver for driver in drivers}
    for name, provisioner in sorted(strange.items()):
        for near in get_close_matches(provisioner.lower(), by_letters, n=1, cutoff=_SIMILAR):
            yield (
                f"StorageClass {name} names the provisioner {provisioner}, which the hub does not know; its driver is "
                f"{by_letters[near]}"
            )


def _waiting(
    strange: Mapping[str, str], claims: Sequence[Mapping[str, Any]], nodes: Collection[str], now: float
) -> Iterator[str]:
    for claim in claims:
        metadata = claim["metadata"]
        node = (metadata.get("annotations") or {}).get(_SELECTED_NODE)
        storage_class = claim["spec"].get("storageClassName")
        pending = (claim.get("status") or {}).get("phase") == "Pending"
        if pending and node in nodes and storage_class in strange and _age_s(metadata, now) > _PATIENCE_S:
            yield (
                f"claim {metadata['namespace']}/{metadata['name']} waits on node {node} for the provisioner "
                f"{strange[storage_class]} of StorageClass {storage_class}, which the hub does not know"
            )


def _age_s(metadata: Mapping[str, Any], now: float) -> float:
    try:
        return now - dt.datetime.fromisoformat(metadata["creationTimestamp"]).timestamp()
    except (KeyError, ValueError):
        return 0.0
