"""The objects that earlier tests have left in a control plane: each test begins without them.

Rules:

* They are removed when the next test begins. Then no process of the earlier test runs any more: at the end of a test, a
  hub or a sidecar that still runs could make its objects anew.
* What the control plane had after its start stays, and so do the kinds and rules of `_STAY`.
* They go at once, without grace and without their finalizers: whoever would remove these has ended.
* The tests' namespaces stay, empty: to delete one, Kubernetes lists every kind of object that could be in it.
"""

from collections.abc import Iterator
from typing import Any

from tests.kit.peers.kube_api import KubeApi
from tests.kit.waiting import wait_for

_STAY = frozenset({
    "APIService", "ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition", "FlowSchema", "Namespace",
    "PriorityLevelConfiguration", "Role", "RoleBinding", "ServiceAccount", "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
})  # fmt: skip
"""The API server takes a while until it follows a new one of these, or it makes them itself."""

_BY_KUBERNETES = frozenset({("ConfigMap", "kube-root-ca.crt"), ("Service", "kubernetes"), ("Endpoints", "kubernetes")})
"""Objects that Kubernetes makes anew."""

_SYSTEM = frozenset({"kube-system", "kube-public"})  # namespaces in which no test makes objects of other kinds

_LIMIT_S = 60.0


class EarlierObjects:
    """Tells the objects of earlier tests from those of the control plane itself."""

    def __init__(self, api: KubeApi) -> None:
        """Take all present objects for the control plane's."""
        self._api = api
        self._own = {it["metadata"]["uid"] for _, it in self._all()}

    def remove(self) -> None:
        """Remove those of all earlier tests.

        Raises:
            NeverCameError: some of them stay.
        """
        wait_for(lambda: not self._sweep(), what="end of the earlier tests' objects", timeout_s=_LIMIT_S)

    def _sweep(self) -> list[tuple[Any, str]]:
        """Remove all that can be removed now. Returns the objects that were there."""
        found = list(self._foreign())
        for resource, it in found:
            self._api.erase(resource, it["metadata"]["name"], it["metadata"].get("namespace"))
        return [(resource.kind, it["metadata"]["name"]) for resource, it in found]

    def _foreign(self) -> Iterator[tuple[Any, dict[str, Any]]]:
        for resource, it in self._all():
            metadata = it["metadata"]
            is_systems = metadata.get("namespace") in _SYSTEM or (resource.kind, metadata["name"]) in _BY_KUBERNETES
            if metadata["uid"] not in self._own and not is_systems:
                yield resource, it

    def _all(self) -> Iterator[tuple[Any, dict[str, Any]]]:
        for resource in self._api.deletable():
            if resource.kind not in _STAY:
                for it in self._api.listed(resource):
                    yield resource, it
