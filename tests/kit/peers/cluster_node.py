"""A node without a kubelet in a cluster: hub with a kubeconfig, agent, the test driver as the vendor's driver.

The hub runs with the permissions that deploy/ gives it, and no other.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.kit.deployed import hub_roles
from tests.kit.edge_node import EdgeNode, csi_driver
from tests.kit.peers.control_plane import ControlPlane

HUB = "csi-bridge-hub"  # the hub's ServiceAccount

_GRANTS = ("csi-bridge-secrets", "csi-bridge-tokens")
"""Roles that people give in the namespaces of their pods; a test that wants them applies them."""


class ClusterNode(EdgeNode):
    """A node whose hub follows an API server."""

    def __init__(self, directory: Path, logs: Path, plane: ControlPlane) -> None:
        super().__init__(directory, logs)
        self.logs = logs  # where the processes' logs are
        self._plane = plane
        plane.apply(hub_roles())
        self._kubeconfig = plane.service_account_kubeconfig("csi-bridge", HUB)

    def start(
        self,
        *flags: str,
        driver_flags: Iterable[str] = ("--no-attach",),
        hub_flags: Iterable[str] = (),
        **csi_driver_spec: Any,
    ) -> None:
        self.start_vendor(driver_flags)
        self._plane.api.create(csi_driver(attach="--no-attach" not in driver_flags, **csi_driver_spec))
        self.bridge.start_hub(f"--kubeconfig={self._kubeconfig}", *hub_flags)
        self.start_agent(*flags)

    def __exit__(self, *failure: object) -> None:
        for name in _GRANTS:
            for kind in ("RoleBinding", "Role"):
                self._plane.api.delete(kind, name, namespace="default")
        super().__exit__(*failure)
