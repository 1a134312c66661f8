"""The permissions that the hub and the stock sidecars need from Kubernetes, and the check that they have them.

The doctor asks the API server about its own account (SelfSubjectAccessReview, which every user may). So it runs in the
hub's pod, or in a proxy driver's: all containers of a pod share one ServiceAccount.

A missing permission of the hub's is wrong, or a warning if only some features need it. A sidecar's is a warning: the
doctor does not see which sidecars the pod has.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from cli.doctor.finding import API_SERVER, Finding, Result, attempt, ok, warning, wrong
from common.errors import SettingsError

if TYPE_CHECKING:
    from cloud.kube.client import Kube

# Where Kubernetes puts a pod's token and the name of its namespace.
ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")

HUB: Final = "the hub"
# The namespace of the Leases of the nodes' heartbeats. All other Leases are in the process's own namespace.
_HEARTBEATS: Final = "kube-node-lease"

_HUBS_ROLES = "run helm upgrade again: deploy/chart has the hub's roles"
_ROLES = (
    "run helm upgrade again (deploy/chart has the roles of each driver in drivers), or the "
    "roles that the sidecar's release ships; until then the sidecar's log says 'forbidden'"
)


class PermissionRule(NamedTuple):
    """Some verbs, the resources that they are needed for, and the feature that needs them; empty: every volume does.

    `namespace` is that of Leases, if it is not the process's own.
    """

    verbs: str
    resources: str
    only_for: str = ""
    namespace: str = ""


_NO_KUBELET = "nodes without a kubelet"
_TOPOLOGY = "drivers with topology or local placement"
_SNAPSHOTS = "volumes from snapshots"
_CLASSES = "VolumeAttributesClasses"
_RECORDS = "edgenodes.csi-bridge.io volumeplacements.csi-bridge.io jointokens.csi-bridge.io denials.csi-bridge.io"
_ELECTION = (
    PermissionRule("create patch", "events", "events"),
    PermissionRule("get create update", "leases.coordination.k8s.io", "--leader-election"),
)

# By process; a sidecar is called as its image. Equals the roles of deploy/chart.
NEEDED: Final[Mapping[str, tuple[PermissionRule, ...]]] = {
    HUB: (
        PermissionRule("list watch", "pods persistentvolumeclaims persistentvolumes nodes"),
        PermissionRule(
            "list watch", "csidrivers.storage.k8s.io storageclasses.storage.k8s.io volumeattachments.storage.k8s.io"
        ),
        PermissionRule("list watch get create patch delete", "leases.coordination.k8s.io configmaps"),
        PermissionRule("get create patch", "nodes csinodes.storage.k8s.io", _NO_KUBELET),
        PermissionRule("get create patch", "leases.coordination.k8s.io", _NO_KUBELET, _HEARTBEATS),
        PermissionRule("get delete", "pods", _NO_KUBELET),
        PermissionRule("get", "persistentvolumeclaims", _NO_KUBELET),
        PermissionRule("patch", "nodes/status pods/status persistentvolumeclaims/status", _NO_KUBELET),
        PermissionRule("get create patch", "events", "events"),
        PermissionRule("list watch get create patch delete", _RECORDS),
        PermissionRule("patch", "edgenodes.csi-bridge.io/status"),
        PermissionRule("delete", "nodes", "csi-bridge forget"),
        PermissionRule("list", "volumesnapshotcontents.snapshot.storage.k8s.io", "csi-bridge audit"),
        PermissionRule("list", "volumegroupsnapshotcontents.groupsnapshot.storage.k8s.io", "csi-bridge audit"),
        PermissionRule(
            "list",
            "validatingadmissionpolicies.admissionregistration.k8s.io "
            "validatingadmissionpolicybindings.admissionregistration.k8s.io",
            "csi-bridge doctor",
        ),
    ),
    "csi-provisioner": (
        PermissionRule("get list watch create patch delete", "persistentvolumes"),
        PermissionRule("list watch update", "persistentvolumeclaims"),
        PermissionRule("list watch", "storageclasses.storage.k8s.io"),
        PermissionRule("get", "volumeattributesclasses.storage.k8s.io", _CLASSES),
        PermissionRule("list watch", "nodes csinodes.storage.k8s.io", _TOPOLOGY),
        PermissionRule("list watch", "volumeattachments.storage.k8s.io", "drivers that attach"),
        PermissionRule("get list watch update", "volumesnapshots.snapshot.storage.k8s.io", _SNAPSHOTS),
        PermissionRule("get", "volumesnapshotcontents.snapshot.storage.k8s.io", _SNAPSHOTS),
        *_ELECTION,
    ),
    "csi-attacher": (
        PermissionRule("list watch", "csinodes.storage.k8s.io"),
        PermissionRule("list watch patch", "persistentvolumes volumeattachments.storage.k8s.io"),
        PermissionRule("patch", "volumeattachments.storage.k8s.io/status"),
        *_ELECTION,
    ),
    "csi-resizer": (
        PermissionRule("list watch patch", "persistentvolumes"),
        PermissionRule("list watch", "persistentvolumeclaims pods"),
        PermissionRule("patch", "persistentvolumeclaims/status"),
        PermissionRule("list watch", "volumeattributesclasses.storage.k8s.io", _CLASSES),
        *_ELECTION,
    ),
    "csi-snapshotter": (
        PermissionRule("list watch", "volumesnapshotclasses.snapshot.storage.k8s.io"),
        PermissionRule("get list watch patch", "volumesnapshotcontents.snapshot.storage.k8s.io"),
        PermissionRule("update patch", "volumesnapshotcontents.snapshot.storage.k8s.io/status"),
        *_ELECTION,
    ),
}


async def examine(*, limit_s: float, account: Path = ACCOUNT) -> list[Result]:
    if not (account / "token").exists():
        return [("permissions", ok("the sidecars' permissions are not looked at: this is no pod"))]
    try:  # here, because the library is large, and is missing where nobody needs it
        from cloud.kube.client import connect

        namespace = (await asyncio.to_thread((account / "namespace").read_text)).strip()
        async with connect("in-cluster") as kube:
            return [
                await attempt("permissions", check(kube, process, namespace), API_SERVER, limit_s=limit_s)
                for process in NEEDED
                if process != HUB
            ]
    except (ModuleNotFoundError, OSError, SettingsError) as error:
        do = "run the doctor in the proxy driver's container"
        return [("permissions", warning(f"the sidecars' permissions are not known: {error}", do))]


async def check(kube: "Kube", process: str, namespace: str) -> Finding:
    from cloud.kube.client import may

    asked = [
        (rule, it, verb) for rule in NEEDED[process] for it in rule.resources.split() for verb in rule.verbs.split()
    ]
    allowed = await asyncio.gather(
        *(
            may(kube, verb, one, (rule.namespace or namespace) if one.startswith(("leases.", "configmaps")) else "")
            for rule, one, verb in asked
        )
    )
    denied = [one for one, is_allowed in zip(asked, allowed, strict=True) if not is_allowed]
    if not denied:
        return ok(f"the ServiceAccount has all permissions that {process} needs")
    missing = "; ".join(f"{verb} {one}{rule.only_for and f' (for {rule.only_for})'}" for rule, one, verb in denied)
    text = f"the ServiceAccount lacks permissions that {process} needs: {missing}"
    if process != HUB:
        return warning(f"if {process} runs in this pod: {text}", _ROLES)
    return (warning if all(rule.only_for for rule, _, _ in denied) else wrong)(text, _HUBS_ROLES)
