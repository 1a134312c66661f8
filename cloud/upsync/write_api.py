"""The requests to the API server that the writers make, and the look for an object that may not be there."""

from typing import Protocol

from cloud.kube import Body, KubeError, Resource


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


class Reader(Protocol):
    """The part of `cloud.kube.Kube` that `find` uses."""

    async def get(self, resource: Resource, name: str, namespace: str = "") -> Body:
        """One object."""


async def find(api: Reader, resource: Resource, name: str, namespace: str = "") -> Body | None:
    """An object; None if there is none.

    Raises:
        KubeError: the API server refused, or did not answer.
    """
    try:
        return await api.get(resource, name, namespace)
    except KubeError as error:
        if not error.is_missing:
            raise
        return None
