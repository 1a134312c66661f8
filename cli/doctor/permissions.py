"""The permissions: checks that this pod's ServiceAccount has every permission that the stock sidecars need.

Rules:

* Permissions belong to a ServiceAccount, and all containers of a pod share it. So the doctor, in the proxy driver's
  container, asks the API server about itself (SelfSubjectAccessReview, which every user may).
* `NEEDED` equals the roles of deploy/cloud/driver/rbac.yaml, for the sidecars' versions and flags of driver.yaml;
  `FOR_GROUPS` the role of deploy/cloud/group-snapshots.
* A missing permission that every volume needs is wrong. One that only some features need is a warning that names them.
"""

import asyncio
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from cli.doctor.finding import NO_API_SERVER, Check, Finding, Result, ok, perform, warning, wrong
from common.errors import SettingsError

if TYPE_CHECKING:
    from cloud.kube import Resource

ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where Kubernetes puts a pod's token and the name of its namespace."""

_DO = (
    "apply my-cluster/cloud, or my-cluster/<your driver>, again (deploy/cloud/driver/rbac.yaml has the roles), or the "
    "roles that the sidecar's release ships; until then the sidecar's log says 'forbidden'"
)

_DO_GROUPS = (
    "add the component deploy/cloud/group-snapshots, or take its feature gate out of csi-snapshotter's flags; until "
    "then csi-snapshotter makes no snapshot at all"
)


@dataclass(frozen=True, slots=True)
class Rule:
    """One resource that a sidecar uses.

    Attributes:
        group: the API group; empty for core.
        resource: with its subresource, such as `persistentvolumeclaims/status`.
        verbs: as in a role.
        only_for: the feature that needs it; empty if every volume does.
        namespaced: whether only the pod's own namespace counts.
    """

    group: str
    resource: str
    verbs: tuple[str, ...]
    only_for: str = ""
    namespaced: bool = False

    def __str__(self) -> str:
        return f"{self.resource}.{self.group}" if self.group else self.resource


_STORAGE, _SNAPSHOT = "storage.k8s.io", "snapshot.storage.k8s.io"

_LEASES = Rule(
    "coordination.k8s.io", "leases", ("get", "create", "update"), only_for="--leader-election", namespaced=True
)
_EVENTS = Rule("", "events", ("create", "patch"), only_for="events")

NEEDED: Final[Mapping[str, tuple[Rule, ...]]] = {
    "csi-provisioner": (
        Rule("", "persistentvolumes", ("get", "list", "watch", "create", "patch", "delete")),
        Rule("", "persistentvolumeclaims", ("list", "watch", "update")),
        Rule(_STORAGE, "storageclasses", ("list", "watch")),
        Rule(_STORAGE, "volumeattributesclasses", ("get",), only_for="VolumeAttributesClasses"),
        Rule(_STORAGE, "csinodes", ("list", "watch"), only_for="drivers with topology or local placement"),
        Rule("", "nodes", ("list", "watch"), only_for="drivers with topology or local placement"),
        Rule(_STORAGE, "volumeattachments", ("list", "watch"), only_for="drivers that attach"),
        Rule(_SNAPSHOT, "volumesnapshots", ("get", "list", "watch", "update"), only_for="volumes from snapshots"),
        Rule(_SNAPSHOT, "volumesnapshotcontents", ("get",), only_for="volumes from snapshots"),
        _EVENTS,
        _LEASES,
    ),
    "csi-attacher": (
        Rule("", "persistentvolumes", ("list", "watch", "patch")),
        Rule(_STORAGE, "csinodes", ("list", "watch")),
        Rule(_STORAGE, "volumeattachments", ("list", "watch", "patch")),
        Rule(_STORAGE, "volumeattachments/status", ("patch",)),
        _EVENTS,
        _LEASES,
    ),
    "csi-resizer": (
        Rule("", "persistentvolumes", ("list", "watch", "patch")),
        Rule("", "persistentvolumeclaims", ("list", "watch")),
        Rule("", "persistentvolumeclaims/status", ("patch",)),
        Rule("", "pods", ("list", "watch")),
        Rule(_STORAGE, "volumeattributesclasses", ("list", "watch"), only_for="VolumeAttributesClasses"),
        _EVENTS,
        _LEASES,
    ),
    "csi-snapshotter": (
        Rule(_SNAPSHOT, "volumesnapshotclasses", ("list", "watch")),
        Rule(_SNAPSHOT, "volumesnapshotcontents", ("get", "list", "watch", "patch")),
        Rule(_SNAPSHOT, "volumesnapshotcontents/status", ("update", "patch")),
        _EVENTS,
        _LEASES,
    ),
}
"""By sidecar, as its image is called."""

_GROUP_SNAPSHOT: Final = "groupsnapshot.storage.k8s.io"
_GROUP_GATE: Final = "CSIVolumeGroupSnapshot=true"

FOR_GROUPS: Final = (
    Rule(_GROUP_SNAPSHOT, "volumegroupsnapshotclasses", ("list", "watch")),
    Rule(_GROUP_SNAPSHOT, "volumegroupsnapshotcontents", ("get", "list", "watch", "patch")),
    Rule(_GROUP_SNAPSHOT, "volumegroupsnapshotcontents/status", ("update", "patch")),
)
"""Of csi-snapshotter with the feature gate: if it cannot watch the groups, it makes no snapshot of any kind."""


class ReviewApi(Protocol):
    """The part of `cloud.kube.Kube` that these checks use."""

    async def list(self, resource: "Resource", *, limit: int, more: str = "") -> Any:
        """A part of a list."""

    async def create(self, resource: "Resource", body: dict[str, Any], namespace: str = "") -> dict[str, Any]:
        """A new object."""


def why_not_asked(account: Path = ACCOUNT) -> str:
    """The reason why the API server cannot be asked here; empty if it can."""
    if not (account / "token").exists():
        return "the sidecars' permissions are not looked at: this is no pod with a ServiceAccount"
    return ""


async def examine(*, limit_s: float, account: Path = ACCOUNT) -> list[Result]:
    """Look at the permissions of this pod's ServiceAccount, for the sidecars of this pod."""
    if why := why_not_asked(account):
        return [Result("permissions", ok(why))]
    try:  # here, because the library is large, and is missing where nobody needs it
        from cloud.kube import connect
    except ModuleNotFoundError as error:
        what = f"the sidecars' permissions are not looked at: no package {error.name} is here"
        return [Result("permissions", warning(what, "install csi-bridge[cloud]"))]
    try:
        namespace = await asyncio.to_thread((account / "namespace").read_text)
    except OSError as error:  # a token may be mounted by hand, without it
        do = "mount the pod's namespace beside its token, as Kubernetes does by itself"
        return [Result("permissions", warning(f"the sidecars' permissions are not looked at: {error}", do))]
    try:
        async with connect("in-cluster") as kube:
            async with asyncio.timeout(limit_s):
                checks = await checks_of(kube, namespace.strip(), socket.gethostname())
            return await perform(checks, limit_s=limit_s)
    except SettingsError as error:
        do = "run the doctor in the proxy driver's container"
        return [Result("permissions", warning(f"the sidecars' permissions are not looked at: {error}", do))]
    except TimeoutError:
        what = f"the sidecars' permissions are not known: the API server did not answer within {limit_s:g} s"
        return [Result("permissions", wrong(what, NO_API_SERVER))]


async def checks_of(kube: ReviewApi, namespace: str, pod: str) -> list[Check]:
    """A check for each stock sidecar of the pod; for all of them if the pod cannot be read."""
    here = await _sidecars(kube, namespace, pod)

    def check(sidecar: str, rules: Sequence[Rule]) -> Callable[[], Any]:
        async def permissions() -> Finding:
            from cloud.kube import KubeError

            try:
                denied = await _denied(kube, rules, namespace)
            except KubeError as error:
                return warning(f"the permissions of {sidecar} are not known: {error}", NO_API_SERVER)
            return check_permissions(sidecar, denied, certain=here is not None)

        return permissions

    needed = NEEDED if here is None else here
    return [Check("permissions", check(sidecar, rules), NO_API_SERVER) for sidecar, rules in needed.items()]


def check_permissions(sidecar: str, denied: Mapping[Rule, Sequence[str]], *, certain: bool) -> Finding:
    """Whether a sidecar has all its permissions.

    Args:
        sidecar: its name.
        denied: the verbs of each rule that are not allowed.
        certain: whether the sidecar is known to run in this pod.
    """
    if not denied:
        return ok(f"the pod's ServiceAccount has all permissions that {sidecar} needs")
    missing = "; ".join(
        f"{', '.join(verbs)} {rule}" + (f" (for {rule.only_for})" if rule.only_for else "")
        for rule, verbs in denied.items()
    )
    text = f"the pod's ServiceAccount lacks permissions that {sidecar} needs: {missing}"
    if not certain:
        return warning(f"if {sidecar} runs in this pod: {text}", _DO)
    do = _DO_GROUPS if all(rule in FOR_GROUPS for rule in denied) else _DO
    return (warning if all(rule.only_for for rule in denied) else wrong)(text, do)


async def _sidecars(kube: ReviewApi, namespace: str, pod: str) -> dict[str, tuple[Rule, ...]] | None:
    """What the stock sidecars of a pod need, by their images and flags; None if the pod cannot be read."""
    from cloud.kube import KubeError, Resource

    one = Resource("Pod", "api/v1", f"namespaces/{namespace}/pods", selector=f"metadata.name={pod}")
    try:
        found = (await kube.list(one, limit=1)).items
    except KubeError:
        return None
    if not found:
        return None
    spec = found[0]["spec"]  # since Kubernetes 1.29 a sidecar may stand among the init containers
    containers = [*spec["containers"], *(spec.get("initContainers") or ())]
    flags = {_name_of(it.get("image", "")): [*(it.get("command") or ()), *(it.get("args") or ())] for it in containers}
    takes_groups = any(_GROUP_GATE in flag for flag in flags.get("csi-snapshotter", ()))
    more = {"csi-snapshotter": FOR_GROUPS} if takes_groups else {}
    return {sidecar: rules + more.get(sidecar, ()) for sidecar, rules in NEEDED.items() if sidecar in flags}


def _name_of(image: str) -> str:
    """`registry.k8s.io/sig-storage/csi-attacher:v4.12.0` → `csi-attacher`."""
    return image.rpartition("/")[2].partition("@")[0].partition(":")[0]


async def _denied(kube: ReviewApi, rules: Sequence[Rule], namespace: str) -> dict[Rule, list[str]]:
    asked = [(rule, verb) for rule in rules for verb in rule.verbs]
    allowed = await asyncio.gather(*(_may(kube, rule, verb, namespace) for rule, verb in asked))
    denied: dict[Rule, list[str]] = {}
    for (rule, verb), is_allowed in zip(asked, allowed, strict=True):
        if not is_allowed:
            denied.setdefault(rule, []).append(verb)
    return denied


async def _may(kube: ReviewApi, rule: Rule, verb: str, namespace: str) -> bool:
    from cloud.kube import RESOURCES

    resource, _, subresource = rule.resource.partition("/")
    wanted = {"group": rule.group, "resource": resource, "subresource": subresource, "verb": verb}
    answer = await kube.create(
        RESOURCES["SelfSubjectAccessReview"],
        {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": wanted | ({"namespace": namespace} if rule.namespaced else {})},
        },
    )
    return bool((answer.get("status") or {}).get("allowed"))
