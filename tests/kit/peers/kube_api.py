"""Objects of a Kubernetes API server as plain dicts: made, read, changed, waited for, deleted."""

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from kubernetes import client, dynamic
from kubernetes.dynamic.exceptions import ConflictError, NotFoundError

from tests.kit.waiting import wait_for

Object = dict[str, Any]

_API_VERSIONS = {
    "ValidatingAdmissionPolicy": "admissionregistration.k8s.io/v1",
    "ValidatingAdmissionPolicyBinding": "admissionregistration.k8s.io/v1",
    "EdgeNode": "csi-bridge.io/v1alpha1",
    "ClusterRole": "rbac.authorization.k8s.io/v1",
    "ClusterRoleBinding": "rbac.authorization.k8s.io/v1",
    "CSIDriver": "storage.k8s.io/v1",
    "CSINode": "storage.k8s.io/v1",
    "CSIStorageCapacity": "storage.k8s.io/v1",
    "CustomResourceDefinition": "apiextensions.k8s.io/v1",
    "Lease": "coordination.k8s.io/v1",
    "Role": "rbac.authorization.k8s.io/v1",
    "RoleBinding": "rbac.authorization.k8s.io/v1",
    "SnapshotMetadataService": "cbt.storage.k8s.io/v1beta1",
    "StatefulSet": "apps/v1",
    "StorageClass": "storage.k8s.io/v1",
    "VolumeAttachment": "storage.k8s.io/v1",
    "VolumeAttributesClass": "storage.k8s.io/v1",
    "VolumeGroupSnapshot": "groupsnapshot.storage.k8s.io/v1",
    "VolumeGroupSnapshotClass": "groupsnapshot.storage.k8s.io/v1",
    "VolumeGroupSnapshotContent": "groupsnapshot.storage.k8s.io/v1",
    "VolumePlacement": "csi-bridge.io/v1alpha1",
    "VolumeSnapshot": "snapshot.storage.k8s.io/v1",
    "VolumeSnapshotClass": "snapshot.storage.k8s.io/v1",
    "VolumeSnapshotContent": "snapshot.storage.k8s.io/v1",
}
"""Where a kind lives; the core group's need no entry."""

_LIMIT_S = 90.0
"""Of a chain of sidecars and controllers: an update conflict costs each a retry, whose pause doubles from 1 s."""

_MERGE = "application/merge-patch+json"
_APPLY = "application/apply-patch+yaml"


class KubeApi:
    """One user's view of an API server.

    Args:
        url: where the server is.
        token: the user's bearer token.
        ca: the server's certificate.
        discovery: a file to keep what the server's kinds are.
        instead: the name and the group of another user, for whom the requests are made.
    """

    def __init__(
        self, url: str, *, token: str, ca: Path, discovery: Path, instead: tuple[str, str] | None = None
    ) -> None:
        configuration = client.Configuration(
            host=url, api_key={"authorization": token}, api_key_prefix={"authorization": "Bearer"}
        )
        configuration.ssl_ca_cert = str(ca)
        self._client = client.ApiClient(configuration)
        if instead is not None:
            for header, value in zip(("Impersonate-User", "Impersonate-Group"), instead, strict=True):
                self._client.set_default_header(header, value)  # type: ignore[no-untyped-call]  # the library has no types here
        self._dynamic: Any = dynamic.DynamicClient(self._client, cache_file=str(discovery))  # type: ignore[no-untyped-call]  # the library has no types here

    def close(self) -> None:
        self._client.rest_client.pool_manager.clear()
        self._client.close()  # type: ignore[no-untyped-call]  # the library has no types here

    def create(self, manifest: Object) -> Object:
        """Create an object. A namespaced one names its namespace.

        Raises:
            kubernetes.dynamic.exceptions.DynamicApiError: the server refuses it.
        """
        resource = self._dynamic.resources.get(api_version=manifest["apiVersion"], kind=manifest["kind"])
        return _plain(resource.create(body=manifest))

    def ensure(self, manifest: Object) -> None:
        """Create an object, unless there is one of its name."""
        try:
            self.create(manifest)
        except ConflictError:
            return

    def get(self, kind: str, name: str, *, namespace: str | None = None) -> Object | None:
        try:
            return _plain(self._resource(kind).get(name=name, namespace=namespace))
        except NotFoundError:
            return None

    def all(self, kind: str, *, namespace: str | None = None) -> list[Object]:
        return [_plain(item) for item in self._resource(kind).get(namespace=namespace).items]

    def patch(self, kind: str, name: str, change: Object, *, namespace: str | None = None) -> Object:
        """Merge a change into an object (JSON merge patch: None removes a field)."""
        resource = self._resource(kind)
        return _plain(resource.patch(body=change, name=name, namespace=namespace, content_type=_MERGE))

    def patch_status(self, kind: str, name: str, change: Object, *, namespace: str | None = None) -> Object:
        status = self._resource(kind).status
        return _plain(status.patch(body=change, name=name, namespace=namespace, content_type=_MERGE))

    def apply(self, manifest: Object, *, manager: str, status: bool = False) -> Object:
        """Server-side apply: the fields of the manifest are this manager's, and its earlier ones go."""
        resource, metadata = self._resource(manifest["kind"]), manifest["metadata"]
        return _plain(
            (resource.status if status else resource).patch(
                body=manifest,
                name=metadata["name"],
                namespace=metadata.get("namespace"),
                content_type=_APPLY,
                field_manager=manager,
            )
        )

    def delete(self, kind: str, name: str, *, namespace: str | None = None, grace_s: int | None = None) -> None:
        """Ask for an object's deletion; its finalizers may keep it for a while. None of this name is fine."""
        body = {} if grace_s is None else {"body": {"gracePeriodSeconds": grace_s}}
        try:
            self._resource(kind).delete(name=name, namespace=namespace, **body)
        except NotFoundError:
            return

    def delete_now(self, kind: str, name: str, *, namespace: str | None = None) -> None:
        """Delete an object without its finalizers and without grace. None of this name is fine."""
        resource = self._resource(kind)
        try:
            resource.patch(
                body={"metadata": {"finalizers": None}},
                name=name,
                namespace=namespace,
                content_type=_MERGE,
            )
            resource.delete(name=name, namespace=namespace, body={"gracePeriodSeconds": 0})
        except NotFoundError:
            return

    def deletable(self) -> list[Any]:
        """The resources whose objects can be listed and deleted, of all kinds that the server has now."""
        self._dynamic.resources.invalidate_cache()
        served = self._dynamic.resources.search(preferred=True)
        found = [it for it in served if {"list", "delete"} <= set(getattr(it, "verbs", None) or ())]
        return [it for it in found if "/" not in it.name and not it.kind.endswith("List")]

    def listed(self, resource: Any) -> list[Object]:
        return [_plain(item) for item in resource.get().items]

    def erase(self, resource: Any, name: str, namespace: str | None) -> None:
        """Delete an object of a resource of `deletable`, without its finalizers and without grace."""
        with suppress(NotFoundError):
            resource.delete(name=name, namespace=namespace, body={"gracePeriodSeconds": 0})
            change = {"metadata": {"finalizers": None}}
            resource.patch(body=change, name=name, namespace=namespace, content_type=_MERGE)

    def wait_until(
        self,
        kind: str,
        name: str,
        condition: Callable[[Object], bool],
        *,
        what: str,
        namespace: str | None = None,
        timeout_s: float = _LIMIT_S,
    ) -> Object:
        """The object, as soon as there is one and it meets the condition.

        Raises:
            NeverCameError: with the object and its events as they are then.
        """

        def look() -> Object | None:
            found = self.get(kind, name, namespace=namespace)
            return found if found and condition(found) else None

        def instead() -> str:
            found = self.get(kind, name, namespace=namespace)
            lines = [f"{kind} {name}: {found}", *self.events(name, namespace=namespace)]
            return "\n".join(lines)

        return wait_for(look, what=f"{kind} {name} {what}", timeout_s=timeout_s, instead=instead)

    def wait_status(
        self, kind: str, name: str, field: str, *, namespace: str | None = None, timeout_s: float = _LIMIT_S
    ) -> Object:
        """The object, as soon as a field of its status is true. Raises as `wait_until`."""
        return self.wait_until(
            kind,
            name,
            lambda it: bool(it.get("status", {}).get(field)),
            what=field,
            namespace=namespace,
            timeout_s=timeout_s,
        )

    def wait_gone(self, kind: str, name: str, *, namespace: str | None = None, timeout_s: float = _LIMIT_S) -> None:
        """Wait until there is no object of this name.

        Raises:
            NeverCameError: with the object and its events as they are then.
        """

        def instead() -> str:
            return "\n".join([str(self.get(kind, name, namespace=namespace)), *self.events(name, namespace=namespace)])

        wait_for(
            lambda: self.get(kind, name, namespace=namespace) is None,
            what=f"end of {kind} {name}",
            timeout_s=timeout_s,
            instead=instead,
        )

    def events(self, name: str, *, namespace: str | None = None) -> list[str]:
        """What the cluster's components said about an object, as "reason: message", oldest first."""
        about = [event for event in self.all("Event", namespace=namespace) if event["involvedObject"]["name"] == name]
        about.sort(key=lambda event: event["metadata"]["creationTimestamp"])
        return [f"{event.get('reason')}: {event.get('message')}" for event in about]

    def token_for(self, namespace: str, service_account: str) -> str:
        """A bearer token of a ServiceAccount, good for longer than any test run."""
        spec = client.V1TokenRequestSpec(audiences=[], expiration_seconds=6 * 3600)
        request = client.AuthenticationV1TokenRequest(spec=spec)
        core = client.CoreV1Api(self._client)
        answer = core.create_namespaced_service_account_token(service_account, namespace, request)
        if answer.status is None:
            raise AssertionError(f"the API server made no token for {namespace}/{service_account}")
        return str(answer.status.token)

    def review_token(self, token: str, *, audience: str = "") -> Object:
        """Whose a token is, as the API server sees it (the status of a TokenReview); without audience: its own."""
        spec = client.V1TokenReviewSpec(token=token, audiences=[audience] if audience else [])
        answer = client.AuthenticationV1Api(self._client).create_token_review(client.V1TokenReview(spec=spec))
        status: Object = self._client.sanitize_for_serialization(answer.status)  # type: ignore[no-untyped-call]  # no types
        return status

    def openapi(self, group: str) -> Object:
        """The OpenAPI document of a group and version, such as ``apis/storage.k8s.io/v1``."""
        document: Object = json.loads(self._dynamic.request("GET", f"/openapi/v3/{group}", serialize=False).data)
        return document

    def _resource(self, kind: str) -> Any:
        return self._dynamic.resources.get(api_version=_API_VERSIONS.get(kind, "v1"), kind=kind)


def _plain(found: Any) -> Object:
    plain: Object = found.to_dict()
    return plain
