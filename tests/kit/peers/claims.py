"""Claims of one storage class in one namespace: asked for, bound, grown, let go."""

from dataclasses import dataclass, replace
from typing import Any

from tests.kit.peers import manifests
from tests.kit.peers.kube_api import KubeApi, Object
from tests.kit.waiting import wait_for

_KIND = "PersistentVolumeClaim"

_BOUND_LIMIT_S = 60.0
"""The bridge's longest wait before it dials again (30 s), the sidecar's own retry, and a busy machine."""


@dataclass(frozen=True, kw_only=True)
class Claims:
    """The claims of one test."""

    api: KubeApi  # the cluster, as its administrator sees it
    namespace: str
    storage_class: str  # what they ask for

    def of_class(self, storage_class: str) -> "Claims":
        return replace(self, storage_class=storage_class)

    def ask(
        self,
        name: str,
        *,
        size_bytes: int = manifests.GIB,
        annotations: dict[str, str] | None = None,
        **fields: Any,
    ) -> None:
        """Create a claim; further fields as `manifests.claim` takes them."""
        where: Any = {"namespace": self.namespace, "storage_class": self.storage_class, "size_bytes": size_bytes}
        claim = manifests.claim(name, **where, **fields)
        claim["metadata"]["annotations"] = annotations or {}
        self.api.create(claim)

    def wait_bound(self, name: str, *, timeout_s: float = _BOUND_LIMIT_S) -> Object:
        claim = self.api.wait_until(
            _KIND,
            name,
            lambda it: it["status"]["phase"] == "Bound",
            what="bound",
            namespace=self.namespace,
            timeout_s=30.0,
        )
        volume = self.api.get("PersistentVolume", claim["spec"]["volumeName"])
        assert volume is not None
        return volume

    def phase(self, name: str) -> str:
        """Pending, Bound or Lost."""
        claim = self.api.get(_KIND, name, namespace=self.namespace)
        assert claim is not None
        return str(claim["status"]["phase"])

    def failures(self, name: str) -> list[Object]:
        return [
            event
            for event in self.api.all("Event", namespace=self.namespace)
            if event["involvedObject"]["name"] == name and event["reason"] == "ProvisioningFailed"
        ]

    def wait_failed(self, name: str, *, times: int = 1, timeout_s: float = 30.0) -> list[Object]:
        """The provisioner's failures, once it has said so this often."""

        def look() -> list[Object]:
            failures = self.failures(name)
            return failures if sum(event.get("count") or 1 for event in failures) >= times else []

        return wait_for(
            look,
            what=f"failure to provision claim {name}, {times} times",
            timeout_s=timeout_s,
            instead=lambda: "\n".join(self.api.events(name, namespace=self.namespace)),
        )

    def wait_tried(self, name: str) -> None:
        """Wait until the provisioner has failed, or the claim is bound: a silent link is replaced before long."""
        wait_for(
            lambda: self.failures(name) or self.phase(name) == "Bound",
            what=f"attempt to provision claim {name}",
            instead=lambda: "\n".join(self.api.events(name, namespace=self.namespace)),
        )

    def grow(self, name: str, size_bytes: int) -> None:
        wanted = {"spec": {"resources": {"requests": {"storage": str(size_bytes)}}}}
        self.api.patch(_KIND, name, wanted, namespace=self.namespace)

    def withdraw(self, name: str) -> None:
        """Delete a claim that is not bound and wait until it is gone; the provisioner may still be at work for it."""
        self.api.delete(_KIND, name, namespace=self.namespace)
        self.api.wait_gone(_KIND, name, namespace=self.namespace)

    def let_go(self, name: str) -> None:
        """Delete a bound claim and wait until its volume is gone from the cluster, which waits for the driver."""
        claim = self.api.get(_KIND, name, namespace=self.namespace)
        assert claim is not None
        self.api.delete(_KIND, name, namespace=self.namespace)
        self.api.wait_gone(_KIND, name, namespace=self.namespace)
        self.api.wait_gone("PersistentVolume", claim["spec"]["volumeName"])
