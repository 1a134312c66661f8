"""A fake API server for unit tests: objects with versions, lists in parts, watches, writes, failures on demand."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any

from cloud.kube.client import RESOURCES, KubeError, ListPage, Resource

Body = dict[str, Any]

_WITH_STATUS = {"Pod", "PersistentVolumeClaim", "PersistentVolume", "Node"}


class FakeApi:
    """Stands in for `cloud.kube.client.Kube`."""

    def __init__(self) -> None:
        self.failures: defaultdict[str, list[KubeError]] = defaultdict(list)  # by verb, the errors of the next calls
        self.asked: list[str] = []  # each call as verb and object
        self.forbidden: set[str] = set()  # the kinds that may not be listed
        self.kubernetes = (1, 36)  # its version
        self.horizon = 0  # versions before this one are forgotten: a watch from there gets Gone
        self._version = 0
        self._objects: defaultdict[str, dict[tuple[str, str], Body]] = defaultdict(dict)
        self._events: defaultdict[str, list[tuple[int, str, Body]]] = defaultdict(list)
        self._happened = asyncio.Event()
        self._watches_to_end = 0

    # ---- called by a test --------------------------------------------------------------------------------------------

    def put(self, body: Body) -> Body:
        kind, key = body["kind"], _key(body)
        self._version += 1
        metadata = {"uid": f"uid-{key[1]}", **body["metadata"], "resourceVersion": str(self._version)}
        made = {**body, "metadata": metadata}
        self.tell("MODIFIED" if key in self._objects[kind] else "ADDED", kind, made)
        self._objects[kind][key] = made
        return made

    def drop(self, kind: str, name: str, namespace: str = "") -> None:
        self._version += 1
        gone = self._objects[kind].pop((namespace, name))
        metadata = {**gone["metadata"], "resourceVersion": str(self._version)}
        self.tell("DELETED", kind, {**gone, "metadata": metadata})

    def bookmark(self, kind: str) -> None:
        self._version += 1
        self.tell("BOOKMARK", kind, {"metadata": {"resourceVersion": str(self._version)}})

    def tell(self, what: str, kind: str, body: Body) -> None:
        """Send an event about an object."""
        assert kind in RESOURCES
        self._events[kind].append((self._version, what, body))
        self._wake()

    def forget(self) -> None:
        self.horizon = self._version

    def cut(self) -> None:
        """End every watch, without an error."""
        self._watches_to_end += 1
        self._wake()

    # ---- Kube's methods ----------------------------------------------------------------------------------------------

    async def version(self) -> tuple[int, int]:
        await self._fail("get")
        return self.kubernetes

    async def list(self, resource: Resource, *, limit: int, more: str = "") -> ListPage:
        self.asked.append(f"list {resource.plural} {limit}")
        await self._fail("list")
        if resource.kind in self.forbidden:
            raise KubeError(f"list {resource.plural}", 403, "Forbidden", "no")
        version, first = (int(it) for it in more.split("/")) if more else (self._version, 0)
        if more and version < self.horizon:
            raise KubeError("list", 410, "Expired", "the token is too old")
        _, of_node, node = resource.selector.partition("spec.nodeName=")
        found = self._objects[resource.kind].values()
        items = [it for it in found if not of_node or it["spec"]["nodeName"] == node][first:]
        rest = f"{version}/{first + limit}" if limit and len(items) > limit else ""
        return ListPage(items[: limit or None], str(version), rest)

    async def watch(self, resource: Resource, version: str, *, for_s: int) -> AsyncIterator[tuple[str, Body]]:
        self.asked.append(f"watch {resource.plural} {version}")
        assert for_s > 0
        await self._fail("watch")
        if int(version) < self.horizon:
            raise KubeError("watch", 410, "Expired", "too old resource version")
        ends, told = self._watches_to_end, int(version)
        yield "OPEN", {}
        while ends == self._watches_to_end:
            happened = self._happened
            for at, what, body in list(self._events[resource.kind]):
                if at > told:
                    told = at
                    yield what, body
            await self._fail("event")
            await happened.wait()

    async def get(self, resource: Resource, name: str, namespace: str = "") -> Body:
        self.asked.append(f"get {resource.plural} {name}")
        await self._fail("get")
        return self._find("get", resource, name, namespace)

    async def create(self, resource: Resource, body: Body, namespace: str = "") -> Body:
        self.asked.append(f"create {resource.plural} {body['metadata']['name']}")
        await self._fail("create")
        placed = {**body, "kind": resource.kind}
        if resource.namespaced:
            placed["metadata"] = {**body["metadata"], "namespace": namespace}
        if _key(placed) in self._objects[resource.kind]:
            raise KubeError("create", 409, "AlreadyExists", "there is one")
        return self.put(placed)

    async def create_of(self, resource: Resource, name: str, subresource: str, body: Body, namespace: str = "") -> Body:
        """Create a token of an existing ServiceAccount, each time another one."""
        self.asked.append(f"create {resource.plural} {name} {subresource}")
        await self._fail("create")
        self._find("create", resource, name, namespace)
        status = {"token": f"token-{len(self.asked)}", "expirationTimestamp": "2030-01-31T12:00:00Z"}
        return {"spec": body["spec"], "status": status}

    async def patch(
        self, resource: Resource, name: str, change: Body, namespace: str = "", *, subresource: str = ""
    ) -> Body:
        self.asked.append(f"patch {resource.plural} {name}" + (f" {subresource}" if subresource else ""))
        await self._fail("patch")
        found = self._find("patch", resource, name, namespace)
        for field in ("resourceVersion", "uid"):
            if change.get("metadata", {}).get(field, found["metadata"][field]) != found["metadata"][field]:
                raise KubeError("patch", 409, "Conflict", f"its {field} is another one")
        merged = _merged(found, change)
        if resource.kind in _WITH_STATUS:  # each half has a path of its own
            status = (merged if subresource else found).get("status")
            half = found if subresource else merged
            merged = {**{name: part for name, part in half.items() if name != "status"}}
            merged |= {"status": status} if status is not None else {}
        meta = merged["metadata"]
        waits = meta.get("finalizers") or meta.get("deletionGracePeriodSeconds")
        if meta.get("deletionTimestamp") and not waits:
            self.drop(resource.kind, name, namespace)
            return merged
        return found if merged == found else self.put(merged)

    async def delete(
        self, resource: Resource, name: str, namespace: str = "", *, uid: str, grace_s: int | None = None
    ) -> None:
        self.asked.append(f"delete {resource.plural} {name}" + ("" if grace_s is None else f" {grace_s}"))
        await self._fail("delete")
        found = self._find("delete", resource, name, namespace)
        if found["metadata"]["uid"] != uid:
            raise KubeError("delete", 409, "Conflict", "its uid is another one")
        if found["metadata"].get("finalizers"):
            self.put({**found, "metadata": {**found["metadata"], "deletionTimestamp": "2026-11-23T09:00:00Z"}})
        else:
            self.drop(resource.kind, name, namespace)

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _find(self, verb: str, resource: Resource, name: str, namespace: str) -> Body:
        found = self._objects[resource.kind].get((namespace, name))
        if found is None:
            raise KubeError(verb, 404, "NotFound", "there is none")
        return found

    async def _fail(self, verb: str) -> None:
        await asyncio.sleep(0)
        if self.failures[verb]:
            raise self.failures[verb].pop(0)

    def _wake(self) -> None:
        self._happened.set()
        self._happened = asyncio.Event()


def _key(body: Body) -> tuple[str, str]:
    return body["metadata"].get("namespace", ""), body["metadata"]["name"]


def _merged(target: Any, change: Any) -> Any:
    """A JSON merge patch (RFC 7386)."""
    if not isinstance(change, dict):
        return change
    merged = dict(target) if isinstance(target, dict) else {}
    for name, value in change.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = _merged(merged.get(name), value)
    return merged
