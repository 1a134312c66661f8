"""The requests to the API server that the writers make."""

from typing import Protocol

from cloud.kube import Body, Resource


class WriteApi(Protocol):
    """The part of `cloud.kube.Kube` that the writers use. Each method raises KubeError."""

    async def get(self, resource: Resource, name: str, namespace: str = "") -> Body:
        """Get an object."""

    async def create(self, resource: Resource, body: Body, namespace: str = "") -> Body:
        """Create an object."""

    async def patch(
        self, resource: Resource, name: str, change: Body, namespace: str = "", *, subresource: str = ""
    ) -> Body:
        """Merge a change into an object."""

    async def delete(
        self, resource: Resource, name: str, namespace: str = "", *, uid: str, grace_s: int | None = None
    ) -> None:
        """Delete an object, if it has this UID."""
