"""The checks of a Kubernetes cluster: the objects and permissions that the edge nodes' drivers need."""

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from cli.doctor.clock import check_clock, skew_s
from cli.doctor.finding import HUBS_ROLES, NO_API_SERVER, Check, Finding, Result, listed, ok, perform, warning, wrong
from cli.doctor.storage_classes import check_classes
from cloud.node_marks import EDGE
from common.errors import SettingsError
from common.pages.hub import NodeStatus

if TYPE_CHECKING:
    from cloud.kube import Resource

NO_PROXIES: Mapping[str, str] = MappingProxyType({})

Entries = Mapping[str, Sequence[str]]
"""The topology keys of each driver in a CSINode."""

_MOST_NODES = 50
"""The hub's role allows it to get one CSINode at a time."""


class ReadApi(Protocol):
    """The part of `cloud.kube.Kube` that these checks use."""

    date: str

    async def list(self, resource: "Resource", *, limit: int, more: str = "") -> Any:
        """A part of a list."""

    async def get(self, resource: "Resource", name: str, namespace: str = "") -> dict[str, Any]:
        """One object."""


async def examine(
    kubeconfig: str,
    nodes: Sequence[NodeStatus],
    proxies: Mapping[str, str] = NO_PROXIES,
    *,
    as_hub: bool = False,
    limit_s: float,
) -> list[Result]:
    """Check a cluster for the drivers of the hub's nodes and proxy drivers.

    Args:
        kubeconfig: a file, or `in-cluster`.
        nodes: all that the hub knows.
        proxies: the placement of each proxy driver, by its name.
        as_hub: whether the kubeconfig is the hub's, so that its permissions are the hub's.
        limit_s: the time limit of each check.
    """
    try:  # here, because the library is large, and is missing where nobody needs it
        from cloud.kube import connect
    except ModuleNotFoundError as error:
        do = "install csi-bridge[cloud]"
        return [Result("Kubernetes", warning(f"the cluster is not looked at: no package {error.name} is here", do))]
    try:
        async with connect(kubeconfig) as kube:
            return await perform(checks_of(kube, nodes, proxies, as_hub=as_hub), limit_s=limit_s)
    except SettingsError as error:
        return [Result("Kubernetes", wrong(str(error), "correct --kubeconfig"))]


def checks_of(
    kube: ReadApi, nodes: Sequence[NodeStatus], proxies: Mapping[str, str] = NO_PROXIES, *, as_hub: bool = False
) -> list[Check]:
    """The checks of a cluster."""
    from cloud.kube import RESOURCES, KubeError

    roles = HUBS_ROLES if as_hub else _MORE_ROLES
    drivers = sorted({driver for node in nodes for driver in node.drivers})
    csi_nodes = _CsiNodes(kube)

    async def csi_drivers() -> Finding:
        try:
            page = await kube.list(RESOURCES["CSIDriver"], limit=0)
        except KubeError as error:
            return wrong(str(error), roles if error.is_forbidden else f"see that the API server runs; {NO_API_SERVER}")
        there = {item["metadata"]["name"] for item in page.items}
        missing = [name for name in drivers if name not in there]
        if missing:
            do = "apply the vendor's CSIDriver object: without it Kubernetes waits for attachments"
            return warning(f"there is no CSIDriver {listed(missing)}", do)
        return ok(
            f"there is a CSIDriver for each driver ({listed(drivers)})" if drivers else "no driver is reported yet"
        )

    async def registered() -> Finding:
        looked_at = [node for node in nodes if node.drivers][:_MOST_NODES]
        try:
            return check_registered(looked_at, {node.node: await csi_nodes.of(node.node) for node in looked_at})
        except KubeError as error:
            return warning(str(error), roles)

    async def topology() -> Finding:
        looked_at = [node for node in nodes if node.drivers][:_MOST_NODES]
        try:
            entries = {node.node: await csi_nodes.of(node.node) for node in looked_at}
        except KubeError as error:
            return warning(str(error), roles)
        return check_topology(looked_at, entries, proxies)

    async def edge_nodes() -> Finding:
        try:
            found = [item["metadata"] for item in (await kube.list(RESOURCES["Node"], limit=0)).items]
            labelled = sorted(it["name"] for it in found if EDGE in (it.get("labels") or {}))[:_MOST_NODES]
            entries = {name: await csi_nodes.of(name) for name in labelled}
        except KubeError as error:
            return warning(str(error), roles)
        return check_edge_nodes(entries, nodes)

    async def storage_classes() -> Finding:
        known = {*drivers, *proxies}
        try:
            classes = (await kube.list(RESOURCES["StorageClass"], limit=0)).items
            claims = (await kube.list(RESOURCES["PersistentVolumeClaim"], limit=0)).items
            objects = {it["metadata"]["name"] for it in (await kube.list(RESOURCES["CSIDriver"], limit=0)).items}
        except KubeError as error:
            return warning(f"the StorageClasses are not looked at: {error}", roles)
        at = {node.node for node in nodes}
        return check_classes(classes, known, objects=objects, claims=claims, nodes=at, now=time.time())

    async def clock() -> Finding:
        asked = time.time()
        try:
            await kube.list(RESOURCES["CSIDriver"], limit=1)
        except KubeError as error:
            return warning(str(error), "see the check of the CSIDriver objects")
        return check_clock(skew_s(kube.date, asked=asked, answered=time.time()), of="the API server")

    async def permissions() -> Finding:
        return await check_permissions(kube)

    return [
        *([Check("permissions", permissions, NO_API_SERVER)] if as_hub else []),
        Check("CSIDriver", csi_drivers, NO_API_SERVER),
        Check("CSINode", registered, NO_API_SERVER),
        Check("topology", topology, NO_API_SERVER),
        Check("edge nodes", edge_nodes, NO_API_SERVER),
        Check("StorageClass", storage_classes, NO_API_SERVER),
        Check("clock", clock, NO_API_SERVER),
    ]


_MORE_ROLES = "give the user or ServiceAccount of this command the roles of the hub (deploy/cloud/base/hub-rbac.yaml)"


async def check_permissions(kube: ReadApi) -> Finding:
    """Whether the hub's account, which `kube` uses, may list every kind that the hub needs."""
    from cloud.kube import RESOURCES, KubeError
    from cloud.sources.cluster.cluster import WATCHED

    forbidden = []
    for resource in (RESOURCES[kind] for kind in WATCHED):
        try:
            await kube.list(resource, limit=1)
        except KubeError as error:
            if not error.is_forbidden:
                return warning(f"the permissions of the hub are not known: {error}", NO_API_SERVER)
            forbidden.append(resource.plural)
    if forbidden:
        what = f"the API server does not let the hub list {', '.join(forbidden)}, so it works from old records or none"
        return wrong(what, HUBS_ROLES)
    return ok(f"the hub may list the objects that it needs: {', '.join(RESOURCES[kind].plural for kind in WATCHED)}")


class _CsiNodes:
    """Reads CSINodes, each of them once."""

    def __init__(self, kube: ReadApi) -> None:
        self._kube = kube
        self._known: dict[str, Entries] = {}

    async def of(self, node: str) -> Entries:
        """The drivers of a node's CSINode; none if there is no CSINode.

        Raises:
            KubeError: the API server refused, or did not answer.
        """
        if node not in self._known:
            self._known[node] = await self._asked(node)
        return self._known[node]

    async def _asked(self, node: str) -> Entries:
        from cloud.kube import RESOURCES, KubeError

        try:
            body = await self._kube.get(RESOURCES["CSINode"], node)
        except KubeError as error:
            if not error.is_missing:
                raise
            body = {}
        return {it["name"]: it.get("topologyKeys") or [] for it in (body.get("spec") or {}).get("drivers") or ()}


def check_registered(nodes: Sequence[NodeStatus], entries: Mapping[str, Entries]) -> Finding:
    """Whether the CSINode of each node has an entry for every driver that the node has reported to the hub."""
    missing = [
        f"{driver} on {node.node}" for node in nodes for driver in node.drivers if driver not in entries[node.node]
    ]
    if missing:
        return wrong(
            f"the CSINode has no entry for {listed(missing)}: no volume can be attached there, and claims for these "
            "nodes can fail with 'no topology key found'",
            "on a node with a kubelet, see that the vendor's node plugin and its node-driver-registrar run, and look "
            "at the registrar's log; on one without, run csi-bridge doctor there, and see csi-bridge status",
        )
    return ok(f"the CSINodes of {len(nodes)} nodes have an entry for each of their drivers")


def check_topology(
    nodes: Sequence[NodeStatus], entries: Mapping[str, Entries], placements: Mapping[str, str]
) -> Finding:
    """Whether every entry has a topology key where the driver's placement needs one.

    Args:
        nodes: the nodes that have reported a driver.
        entries: the entries of each node's CSINode.
        placements: `--placement` by driver. With `auto` a driver needs a key on every node if it has one on any.
    """
    bare = list(_without_keys(nodes, entries, placements))
    if not bare:
        return ok("every driver with local placement has a topology key in the CSINodes")
    return wrong(
        f"the CSINode has an entry without a topology key for {listed(bare)}: the provisioner refuses claims for these "
        "nodes ('no topology key found')",
        "on a node with a kubelet, let it call the driver through the agent's relay: start the agent with --relay-dir, "
        "and give node-driver-registrar --kubelet-registration-path=RELAY_DIR/DRIVER.sock (docs/install.md, Drivers "
        "that need the relay); if both are so already, restart the vendor's node plugin, so that it registers again; "
        "on one without, look at the agent's log",
    )


def _without_keys(
    nodes: Sequence[NodeStatus], entries: Mapping[str, Entries], placements: Mapping[str, str]
) -> Iterator[str]:
    keys: dict[str, dict[str, Sequence[str]]] = defaultdict(dict)
    for node in nodes:
        for driver in node.drivers:
            if driver in entries[node.node]:
                keys[driver][node.node] = entries[node.node][driver]
    for driver, of_nodes in sorted(keys.items()):
        placement = placements.get(driver)
        if placement == "local" or (placement == "auto" and any(of_nodes.values())):
            yield from (f"{driver} on {node}" for node, found in of_nodes.items() if not found)


def check_edge_nodes(entries: Mapping[str, Entries], nodes: Sequence[NodeStatus]) -> Finding:
    """Whether a driver is registered on every node that is labelled as an edge node.

    Args:
        entries: the entries of each labelled node's CSINode.
        nodes: all nodes that the hub knows.
    """
    if not nodes:
        return ok(f"{len(entries)} nodes are labelled {EDGE}; no edge node of a hub is known here")
    known = {node.node for node in nodes}
    drivers = {driver for node in nodes for driver in node.drivers}
    bare = [name for name, found in entries.items() if not drivers & found.keys()]
    if not bare:
        return ok(f"{len(entries)} nodes are labelled {EDGE}, and each has a driver of this hub in its CSINode")
    unseen = [name for name in bare if name not in known]
    agents = f"; no agent has connected from {listed(unseen)}" if unseen else ""
    return warning(
        f"no driver of this hub is registered on {listed(bare)}, labelled {EDGE}: claims of pods that are put "
        f"there fail, with local placement by 'no topology key found for node …'{agents}",
        "see that the vendor's node plugin and its node-driver-registrar run there (nodeSelector and tolerations of "
        "its DaemonSet), or keep pods with such claims off these nodes",
    )
