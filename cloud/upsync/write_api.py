"""What the writers ask of the API server."""

from typing import Protocol

from cloud.kube import Body, Resource


class WriteApi(Protocol):
    """A part of `cloud.kube.Kube`: each method raises KubeError."""

    async def get(self, resource: Resource, name: str, namespace: str = "") -> Body:
        """One object."""

    async def create(self, resource: Resource, body: Body, namespace: str = "") -> Body:
        """A new object."""

    async def patch(
        self, resource: Resource, name: str, change: Body, namespace: str = "", *, subresource: str = ""
    ) -> Body:
        """Merge a change into an object."""

    async def delete(
        self, resource: Resource, name: str, namespace: str = "", *, uid: str, grace_s: int | None = None
    ) -> None:
        """Delete the object of this very UID."""
