"""Earlier volumes: the PersistentVolumes that an earlier hub of this cluster has made.

A provisioner has made such a volume, and its nodeAffinity has the bridge's own segment. So a first install beside
static volumes, or in KubeEdge's place, finds none. A volume that this hub has made is none: until a cluster can be
read, an hour may go by.
"""

from typing import Final

from cloud.kinds.fields import Body
from cloud.placement.claims import Claims
from cloud.placement.rules import VOLUME, Thing
from cloud.sources.source import Source
from common.node_selector import choices
from common.topology import NODE_SEGMENT

_PROVISIONED_BY: Final = "pv.kubernetes.io/provisioned-by"


def find_earlier(cluster: Source, claims: Claims) -> str:
    """A sentence about a volume of an earlier hub; empty if there is none. `claims` know the volumes of this one."""
    for ref in sorted(cluster.refs("PersistentVolume"), key=lambda ref: ref.name):
        body = cluster.body(ref)
        if body is not None and (node := _own_segment(body)):
            csi = body["spec"]["csi"]
            if Thing(VOLUME, str(csi.get("volumeHandle", ""))) not in claims.book(csi["driver"]).ids:
                return (
                    f"the hub's records are new, but PersistentVolume {ref.name} of driver {csi['driver']} was made on "
                    f"edge node {node}"
                )
    return ""


def _own_segment(body: Body) -> str:
    spec = body.get("spec") or {}
    driver = (spec.get("csi") or {}).get("driver", "")
    if not driver or (body["metadata"].get("annotations") or {}).get(_PROVISIONED_BY) != driver:
        return ""
    terms = ((spec.get("nodeAffinity") or {}).get("required") or {}).get("nodeSelectorTerms") or ()
    found = (value for term in terms for key, values in choices(term) if key == NODE_SEGMENT for value in values)
    return next(found, "")
