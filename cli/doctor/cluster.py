"""The checks of a Kubernetes cluster: the objects that the drivers need, and the hub's permissions."""

from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from cli.doctor import permissions
from cli.doctor.finding import API_SERVER, Finding, Result, attempt, ok, warning, wrong
from cloud.proxy.driver_settings import PER_NODE_MODES
from common.errors import SettingsError
from common.pages.hub import NodeStatus
from common.wording import first_names

if TYPE_CHECKING:
    from cloud.kube.client import Kube

Entries = Mapping[str, Sequence[str]]  # the topology keys of each driver in a CSINode

_MOST_NODES = 50  # the hub's role allows it to get one CSINode at a time

# The policies of deploy/chart/templates/admission.yaml, and their bindings.
POLICIES = (
    "csi-bridge-hub-claims", "csi-bridge-hub-marks", "csi-bridge-hub-nodes", "csi-bridge-hub-pods",
    "csi-bridge-node-labels", "csi-bridge-records",
)  # fmt: skip

_WITH_POLICIES = (1, 30)  # the first Kubernetes with ValidatingAdmissionPolicies in v1
_SIMILAR = 0.8  # difflib's ratio: at most two letters of twelve differ


async def examine(
    kubeconfig: str,
    nodes: Sequence[NodeStatus],
    proxies: Mapping[str, str],
    *,
    as_hub: bool,
    limit_s: float,
    lease_in: str | None = None,
) -> list[Result]:
    try:  # here, because the library is large, and is missing where nobody needs it
        from cloud.kube.client import connect
        from cloud.leadership.hub_lease import lease_namespace

        namespace = lease_namespace(lease_in) if as_hub else ""
        async with connect(kubeconfig) as kube:
            return await check(kube, nodes, proxies, lease_in=namespace, limit_s=limit_s)
    except ModuleNotFoundError as error:
        what = f"the cluster is not looked at: no package {error.name} is here"
        return [("Kubernetes", warning(what, "install csi-bridge[cloud]"))]
    except SettingsError as error:
        return [("Kubernetes", wrong(str(error), "correct --kubeconfig"))]


async def check(
    kube: "Kube", nodes: Sequence[NodeStatus], proxies: Mapping[str, str], *, lease_in: str, limit_s: float
) -> list[Result]:
    drivers = sorted({driver for node in nodes for driver in node.drivers})
    looked_at = [node for node in nodes if node.drivers][:_MOST_NODES]

    async def names(kind: str) -> dict[str, dict[str, Any]]:
        from cloud.kube.client import RESOURCES

        return {it["metadata"]["name"]: it for it in (await kube.list(RESOURCES[kind], limit=0)).items}

    async def policies() -> Finding:
        from cloud.kube.client import KubeError

        version = await kube.version()
        shown = "Kubernetes is {}.{}".format(*version)
        if version < _WITH_POLICIES:
            return warning(
                f"{shown}; before 1.30 nothing but its roles limits the hub", "see docs/install.md#older-kubernetes"
            )
        try:
            there = [await names(f"ValidatingAdmissionPolicy{part}") for part in ("", "Binding")]
        except KubeError as error:
            if not error.is_forbidden:
                raise
            return ok(f"{shown}; this account may not see whether the policies of admission.yaml are there")
        if missing := [name for name in POLICIES if any(name not in them for them in there)]:
            do = "set admissionPolicies.enabled in the chart: they say what the hub and the nodes may not change"
            return warning(f"{shown}, and these policies or their bindings are missing: {first_names(missing)}", do)
        return ok(f"{shown}, and the policies of admission.yaml are there")

    async def csi_drivers() -> Finding:
        there = await names("CSIDriver")
        if missing := [name for name in drivers if name not in there]:
            do = "apply the vendor's CSIDriver object: without it Kubernetes waits for attachments"
            return warning(f"there is no CSIDriver {first_names(missing)}", do)
        return ok(f"there is a CSIDriver for each driver that a node has reported ({first_names(drivers) or 'none'})")

    async def csi_nodes() -> Finding:
        return check_csi_nodes(looked_at, {it.node: await _entries(kube, it.node) for it in looked_at}, proxies)

    async def classes() -> Finding:
        provisioners = {name: str(it.get("provisioner")) for name, it in (await names("StorageClass")).items()}
        return check_classes(provisioners, {*drivers, *proxies}, await names("CSIDriver"))

    async def rights() -> Finding:
        return await permissions.check(kube, permissions.HUB, lease_in)

    of_hub = {"permissions": rights} if lease_in else {}
    checks = {
        **of_hub,
        "policies": policies,
        "CSIDriver": csi_drivers,
        "CSINode": csi_nodes,
        "StorageClass": classes,
    }
    return [await attempt(name, make(), API_SERVER, limit_s=limit_s) for name, make in checks.items()]


async def _entries(kube: "Kube", node: str) -> Entries:
    from cloud.kube.client import RESOURCES, KubeError

    try:
        found = await kube.get(RESOURCES["CSINode"], node)
    except KubeError as error:
        if error.code == 404:
            return {}
        raise
    return {it["name"]: it.get("topologyKeys") or () for it in found["spec"].get("drivers") or ()}


def check_csi_nodes(
    nodes: Sequence[NodeStatus], entries: Mapping[str, Entries], placements: Mapping[str, str]
) -> Finding:
    # with `auto`, a driver needs a key on every node if it has one on any
    reported = [(driver, node.node) for node in nodes for driver in node.drivers]
    if missing := [f"{driver} on {node}" for driver, node in reported if driver not in entries[node]]:
        return wrong(
            f"the CSINode has no entry for {first_names(missing)}: no volume can be attached there, and claims for "
            "these nodes can fail with 'no topology key found'",
            "on a node with a kubelet, see that the vendor's node plugin and its node-driver-registrar run, and look "
            "at the registrar's log; on one without, run csi-bridge doctor there, and see csi-bridge status",
        )
    with_keys = {driver for driver, node in reported if entries[node][driver]}
    local = {name for name, how in placements.items() if how in PER_NODE_MODES or (how == "auto" and name in with_keys)}
    if bare := [f"{driver} on {node}" for driver, node in reported if driver in local and not entries[node][driver]]:
        return wrong(
            f"the CSINode has an entry without a topology key for {first_names(bare)}: the provisioner refuses claims "
            "for these nodes ('no topology key found')",
            "on a node with a kubelet, let it call the driver through the agent's relay "
            "(docs/install.md#drivers-that-need-the-relay), and restart the vendor's node plugin; on one without, look "
            "at the agent's log",
        )
    return ok(f"the CSINodes of {len(nodes)} nodes have an entry for each of their drivers")


def check_classes(provisioners: Mapping[str, str], drivers: Collection[str], others: Collection[str]) -> Finding:
    # a similar name of another CSIDriver object is a sibling (ebs.csi.aws.com, efs.csi.aws.com)
    by_letters = {driver.lower(): driver for driver in drivers}
    typos = [
        f"StorageClass {name} names the provisioner {provisioner}; the hub's driver is {by_letters[near]}"
        for name, provisioner in sorted(provisioners.items())
        if provisioner not in drivers and provisioner not in others
        for near in get_close_matches(provisioner.lower(), by_letters, n=1, cutoff=_SIMILAR)
    ]
    if typos:
        do = "make the StorageClass anew with the driver's own name (it cannot be changed), and the claims that wait"
        return wrong("; ".join(typos), do)
    named = sorted(name for name, provisioner in provisioners.items() if provisioner in drivers)
    return ok(f"StorageClasses that name a driver of this hub: {first_names(named) or 'none'}")
