"""The first start: a hub whose state directory was empty looks for volumes that an earlier hub has made.

Rules:

* A PersistentVolume that a provisioner has made, with the bridge's own segment in its nodeAffinity, is a volume of an
  earlier hub. Then the records of that hub are lost: the hub notes a loss, which `csi-bridge trust` settles.
* A PersistentVolume that a person has written is none, and neither is one without this segment. So a first install
  beside static volumes, or in KubeEdge's place, is not stopped.
* A volume that this hub has made is none: until a cluster can be read, an hour may go by, and the hub makes volumes.
* Until the hub has read all PersistentVolumes once, the loss counts as possible, also after a restart meanwhile: a file
  in the state directory says that the first look is still due.
"""

import logging
from collections.abc import Callable

from cloud.kinds.fields import Body
from cloud.placement.claims import Claims
from cloud.placement.requests import VOLUME, Thing
from cloud.sources.source import Source
from cloud.store import Store
from common.node_selector import choices
from common.objects import Ref
from common.topology import NODE_SEGMENT

log = logging.getLogger("csi_bridge.hub.losses")

_KIND = "PersistentVolume"
_PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"

_DOUBT = "the state directory was empty, and the hub has not read all PersistentVolumes yet"


def begin(store: Store, claims: Claims, source: Source | None, *, settled: Callable[[], None]) -> None:
    """Look for earlier volumes as soon as the source is ready, if this is a first start.

    Args:
        store: knows whether the state directory was empty. Its losses get the loss.
        claims: know the volumes that this hub has made. Their losses get the loss, too.
        source: the PersistentVolumes of a cluster; None: the hub follows none.
        settled: called when it is certain whether there is a loss.
    """
    if not store.is_new:
        return
    if source is None:
        store.end_first_start()
        return
    losses = (store.losses, claims.losses)
    for each in losses:
        each.put_in_doubt(_DOUBT)

    def look(_refs: frozenset[Ref] = frozenset()) -> None:
        if not source.is_ready or not store.is_new:
            return
        found = _earlier(source, claims)
        for each in losses:
            if each.doubt and found:  # no doubt any more: an operator has settled it meanwhile
                each.add(found)
            each.put_in_doubt("")
        store.end_first_start()
        settled()

    source.subscribe(look)
    look()


def _earlier(source: Source, claims: Claims) -> str:
    """A sentence about a volume of an earlier hub; empty if there is none."""
    for ref in sorted(source.refs(_KIND), key=lambda ref: ref.name):
        body = source.body(ref)
        if body is not None and (value := _own_segment(body)) and not _is_made(body, claims):
            driver = body["spec"]["csi"]["driver"]
            return (
                f"the state directory was empty, but PersistentVolume {ref.name} of driver {driver} was made on edge "
                f"node {value}"
            )
    return ""


def _own_segment(body: Body) -> str:
    """The value of the bridge's own segment in a volume that a provisioner has made; empty if it is none."""
    spec = body.get("spec") or {}
    driver = (spec.get("csi") or {}).get("driver", "")
    if not driver or (body["metadata"].get("annotations") or {}).get(_PROVISIONED_BY) != driver:
        return ""
    terms = ((spec.get("nodeAffinity") or {}).get("required") or {}).get("nodeSelectorTerms") or ()
    found = (value for term in terms for key, values in choices(term) if key == NODE_SEGMENT for value in values)
    return next(found, "")


def _is_made(body: Body, claims: Claims) -> bool:
    """Whether this hub has made the volume of a PersistentVolume."""
    csi = body["spec"]["csi"]
    thing = Thing(VOLUME, str(csi.get("volumeHandle", "")))
    return thing in claims.book(csi["driver"]).ids
