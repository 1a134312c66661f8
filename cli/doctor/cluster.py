"""The checks of a Kubernetes cluster: whether it has what the drivers of the edge nodes need there."""

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from cli.doctor.clock import check_clock, skew_s
from cli.doctor.finding import Check, Finding, Result, listed, ok, perform, warning, wrong
from common.errors import SettingsError

if TYPE_CHECKING:
    from cloud.kube import Resource

State = Mapping[str, Any]

_MOST_NODES = 50
"""CSINodes are got one by one."""


class Api(Protocol):
    """What is asked of `cloud.kube.Kube`."""

    date: str

    async def list(self, resource: "Resource", *, limit: int, more: str = "") -> Any:
        """A part of a list."""

    async def get(self, resource: "Resource", name: str, namespace: str = "") -> dict[str, Any]:
        """One object."""


async def examine(kubeconfig: str, nodes: Sequence[State], *, limit_s: float) -> list[Result]:
    """Look at a cluster, for the drivers that the hub's nodes have reported."""
    try:  # here, because the library is large, and is missing where nobody needs it
        from cloud.kube import connect
    except ModuleNotFoundError as error:
        do = "install csi-bridge[cloud]"
        return [Result("Kubernetes", warning(f"the cluster is not looked at: no package {error.name} is here", do))]
    try:
        async with connect(kubeconfig) as kube:
            return await perform(checks_of(kube, nodes), limit_s=limit_s)
    except SettingsError as error:
        return [Result("Kubernetes", wrong(str(error), "correct --kubeconfig"))]


def checks_of(kube: Api, nodes: Sequence[State]) -> list[Check]:
    """The checks, of which the first one asks for what the others need."""
    from cloud.kube import RESOURCES, KubeError

    drivers = sorted({driver for node in nodes for driver in node["drivers"]})

    async def csi_drivers() -> Finding:
        try:
            page = await kube.list(RESOURCES["CSIDriver"], limit=0)
        except KubeError as error:
            return wrong(str(error), "see that the API server runs, and that the hub's ServiceAccount has its roles")
        there = {item["metadata"]["name"] for item in page.items}
        missing = [name for name in drivers if name not in there]
        if missing:
            do = "apply the vendor's CSIDriver object: without it Kubernetes waits for attachments"
            return warning(f"there is no CSIDriver {listed(missing)}", do)
        return ok(
            f"there is a CSIDriver for each driver ({listed(drivers)})" if drivers else "no driver is reported yet"
        )

    async def csi_nodes() -> Finding:
        looked_at = [node for node in nodes if node["drivers"]][:_MOST_NODES]
        missing = []
        for node in looked_at:
            try:
                body = await kube.get(RESOURCES["CSINode"], node["node"])
            except KubeError as error:
                if not error.is_missing:
                    return warning(str(error), "give whoever runs the doctor the roles of the hub")
                body = {}
            entries = {entry["name"] for entry in (body.get("spec") or {}).get("drivers") or ()}
            missing += [f"{driver} on {node['node']}" for driver in node["drivers"] if driver not in entries]
        if missing:
            return wrong(
                f"the CSINode has no entry for {listed(missing)}: no volume can be attached there",
                "on a node with a kubelet, look at the log of the driver's node-driver-registrar; on one without, run "
                "csi-bridge doctor there, and see csi-bridge status",
            )
        return ok(f"the CSINodes of {len(looked_at)} nodes have an entry for each of their drivers")

    async def clock() -> Finding:
        asked = time.time()
        try:
            await kube.list(RESOURCES["CSIDriver"], limit=1)
        except KubeError as error:
            return warning(str(error), "see the check of the CSIDriver objects")
        return check_clock(skew_s(kube.date, asked=asked, answered=time.time()), of="the API server")

    return [Check("CSIDriver", csi_drivers), Check("CSINode", csi_nodes), Check("clock", clock)]
