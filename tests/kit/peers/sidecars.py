"""The stock CSI sidecars, each with the ServiceAccount and the roles that its own project publishes for it."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tests.kit.deployed import arguments, with_flags
from tests.kit.peers.control_plane import ControlPlane
from tests.kit.ports import free_ports
from tests.kit.processes import Process, Supervisor, listens_on

_NAMESPACES = {"snapshot-controller": "kube-system"}
"""Where a sidecar's published ServiceAccount lives, if not in ``default``."""

_METADATA_KIND: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": "snapshotmetadataservices.cbt.storage.k8s.io",
        "annotations": {"api-approved.kubernetes.io": "unapproved, for tests"},
    },
    "spec": {
        "group": "cbt.storage.k8s.io",
        "names": {"kind": "SnapshotMetadataService", "plural": "snapshotmetadataservices"},
        "scope": "Cluster",
        "versions": [
            {
                "name": "v1beta1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {
                                "type": "object",
                                "required": ["address", "audience", "caCert"],
                                "properties": {
                                    "address": {"type": "string"},
                                    "audience": {"type": "string"},
                                    "caCert": {"type": "string", "format": "byte"},
                                },
                            }
                        },
                    }
                },
            }
        ],
    },
}
"""As far as the tests need it. No Go module proxy has what kubernetes-csi/external-snapshot-metadata publishes."""


@dataclass(frozen=True, kw_only=True)
class Sidecars:
    """Starts sidecars against one control plane."""

    control_plane: ControlPlane  # whose objects they watch
    supervisor: Supervisor  # who stops them
    peer: Callable[[str], Path]  # finds a peer's binary or published file by name

    def start(
        self,
        name: str,
        socket: Path,
        *flags: str,
        log_name: str | None = None,
        ready: bool = True,
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> Process:
        """Start a sidecar on a CSI socket.

        Args:
            name: csi-provisioner, csi-attacher, csi-resizer or csi-snapshotter.
            socket: the CSI socket it calls.
            flags: further flags.
            log_name: what its log and errors call it, where one test runs several of a kind.
            ready: wait until it has gone through its start-up calls to the driver.
            variables: what its pod would add to its environment.

        Raises:
            ProcessDiedError: it ended instead of becoming ready.
        """
        return self._start(
            name,
            [f"--csi-address=unix://{socket}", *flags],
            log_name=log_name or name,
            ready=ready,
            environment={**os.environ, **variables},
        )

    def start_deployed(
        self,
        container: Mapping[str, Any],
        socket: Path,
        *flags: str,
        account: str = "csi-bridge-driver",
        environment: Mapping[str, str] | None = None,
        **changed: object,
    ) -> Process:
        """Start a sidecar as deploy/ does; when it is ready it is the leader of its kind.

        Args:
            container: that of the sidecar in a manifest.
            socket: the CSI socket it calls.
            flags: further flags.
            account: its ServiceAccount in the namespace csi-bridge.
            environment: the whole environment, if not the test run's own.
            changed: flags of the container with other values.
        """
        (port,) = free_ports(1)
        command = [
            self.peer(container["name"]),
            *with_flags(arguments(dict(container)), csi_address=socket, **changed),
            f"--kubeconfig={self.control_plane.service_account_kubeconfig('csi-bridge', account)}",
            "--leader-election-namespace=csi-bridge",  # in a pod it is that of the pod
            f"--http-endpoint=127.0.0.1:{port}",
            "--v=5",
            *flags,
        ]
        return self.supervisor.start(
            container["name"], command, ready=lambda: listens_on(port), timeout_s=120.0, environment=environment
        )

    def start_snapshot_controller(self, *flags: str) -> Process:
        """Start the controller that the csi-snapshotter works for. Needs `install_snapshot_kinds`."""
        return self._start("snapshot-controller", [*flags], log_name="snapshot-controller", ready=True)

    def install_snapshot_kinds(self) -> None:
        """Give the API server the kinds of snapshots, groups of them and their metadata. Wait until it serves them."""
        self.control_plane.apply(self.peer("snapshot-crds"))
        self.control_plane.api.ensure(_METADATA_KIND)
        for definition in self.control_plane.api.all("CustomResourceDefinition"):
            self.control_plane.api.wait_until(
                "CustomResourceDefinition",
                definition["metadata"]["name"],
                lambda found: any(
                    condition["type"] == "Established" and condition["status"] == "True"
                    for condition in found.get("status", {}).get("conditions") or ()
                ),
                what="established",
            )

    def _start(
        self,
        name: str,
        flags: list[str],
        *,
        log_name: str,
        ready: bool,
        environment: Mapping[str, str] | None = None,
    ) -> Process:
        self.control_plane.apply(self.peer(f"{name}-rbac.yaml"))
        namespace = _NAMESPACES.get(name, "default")
        (port,) = free_ports(1)
        command = [
            self.peer(name),
            f"--kubeconfig={self.control_plane.service_account_kubeconfig(namespace, name)}",
            "--leader-election=false",
            # Their metrics server starts after the calls to the driver that decide whether they can work with it.
            f"--http-endpoint=127.0.0.1:{port}",
            "--v=5",
            *flags,
        ]
        return self.supervisor.start(
            log_name, command, ready=(lambda: listens_on(port)) if ready else None, environment=environment
        )
