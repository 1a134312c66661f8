"""The Kubernetes API: with its credentials, the one door to the `kubernetes` package.

Rules:

* Objects are dictionaries, as the API server wrote them. The package's models are not used: they cost many times the
  CPU, and drop fields that are newer than the package.
* Every failure is a `KubeError`. Without an answer its code is 0, and the request may have been carried out.
* No error has a value of an object: the API server quotes refused values, and a Secret may be among them.
* The API server's certificate is trusted where kubectl trusts it, on every version of Python.
* Requests that change something, which are most of a hub's, go over connections of our own
  (`cloud.kube.kept_connections`), unless there is a proxy. All else goes through aiohttp.
"""

import json
import re
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlencode
from urllib.request import getproxies_environment

import aiohttp
from aiohttp.http_exceptions import LineTooLong
from kubernetes.aio.client.api_client import ApiClient

from cloud.kube.credentials import ApiCredentials, loaded, unusable
from cloud.kube.http_answer import MOST_BYTES
from cloud.kube.kept_connections import ANSWER_S, NOT_LEADING, KeptConnections
from common.errors import BridgeError
from common.observe.version import SOFTWARE

Body = dict[str, Any]

# TCP probes a watch after this silence, at these intervals, and closes it after this number without an answer.
_SILENCE_S = 60
_PROBE_S = 5
_PROBES = 3

_MERGE_PATCH: Final = "application/merge-patch+json"
_JSON_PATCH: Final = "application/json-patch+json"

# Not a word of the API's. A watch of the same version would send the same event again.
_TOO_LARGE: Final = "EventTooLarge"

_SHOWN_CHARS: Final = 300

PAGE: Final = 250  # objects in one part of a list: they take the loop some ten milliseconds


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of objects in the API."""

    kind: str
    group: str  # the path of its API group and version, such as `apis/storage.k8s.io/v1`
    plural: str  # its name in a path
    namespaced: bool = False
    selector: str = ""  # a field selector for lists and watches
    labels: str = ""  # a label selector for them
    namespace: str = ""  # the only namespace for them; empty: all
    made_by: str = ""  # the file with its CustomResourceDefinition, if the cluster may lack it


_CORE = "api/v1"
_STORAGE = "apis/storage.k8s.io/v1"
_ADMISSION = "apis/admissionregistration.k8s.io/v1"
_SNAPSHOTS = "apis/snapshot.storage.k8s.io/v1"
_GROUPS = "apis/groupsnapshot.storage.k8s.io/v1"

RESOURCES: Final = {
    it.kind: it
    for it in (
        Resource("Pod", _CORE, "pods", namespaced=True, selector="spec.nodeName!="),
        Resource("PersistentVolumeClaim", _CORE, "persistentvolumeclaims", namespaced=True),
        Resource("PersistentVolume", _CORE, "persistentvolumes"),
        Resource("VolumeAttachment", _STORAGE, "volumeattachments"),
        Resource("Node", _CORE, "nodes"),
        Resource("CSIDriver", _STORAGE, "csidrivers"),
        Resource("CSINode", _STORAGE, "csinodes"),
        Resource("VolumeSnapshotContent", _SNAPSHOTS, "volumesnapshotcontents"),
        Resource("VolumeSnapshot", _SNAPSHOTS, "volumesnapshots", namespaced=True),
        Resource("VolumeGroupSnapshotContent", _GROUPS, "volumegroupsnapshotcontents"),
        Resource("VolumeGroupSnapshot", _GROUPS, "volumegroupsnapshots", namespaced=True),
        Resource("StorageClass", _STORAGE, "storageclasses"),
        Resource("Secret", _CORE, "secrets", namespaced=True),
        Resource("ServiceAccount", _CORE, "serviceaccounts", namespaced=True),
        Resource("Lease", "apis/coordination.k8s.io/v1", "leases", namespaced=True),
        Resource("Event", _CORE, "events", namespaced=True),
        Resource("ValidatingAdmissionPolicy", _ADMISSION, "validatingadmissionpolicies"),
        Resource("ValidatingAdmissionPolicyBinding", _ADMISSION, "validatingadmissionpolicybindings"),
        Resource("SelfSubjectAccessReview", "apis/authorization.k8s.io/v1", "selfsubjectaccessreviews"),
    )
}


class KubeError(BridgeError):
    """The API server refused something, or did not answer."""

    def __init__(self, what: str, code: int, reason: str, why: str) -> None:
        self.code = code  # the HTTP status; 0 without an answer that can be used
        self.reason = reason  # the API's word for it, such as `NotFound` (metav1.StatusReason); may be empty
        super().__init__(f"Kubernetes: {what}: {why[:_SHOWN_CHARS]}")

    @property
    def is_missing(self) -> bool:
        return self.code == 404

    @property
    def is_forbidden(self) -> bool:
        return self.code == 403

    @property
    def is_expired(self) -> bool:
        """The caller must list again: the resource version is too old (410 Gone), or its next event is too large."""
        return self.code == 410 or self.reason == _TOO_LARGE


@dataclass(frozen=True, slots=True)
class ListPage:
    """A part of a list; `version` is the list's resource version."""

    items: list[Body]
    version: str
    more: str  # the token for the next part; empty after the last


class Kube:
    """A client of one API server. Use `connect`."""

    def __init__(
        self, client: ApiClient, credentials: ApiCredentials, kept: KeptConnections | None, may_ask: Callable[[], bool]
    ) -> None:
        self._client = client
        self._credentials = credentials
        self._kept = kept
        self._may_ask = may_ask

    async def version(self) -> tuple[int, int]:
        answer = await self._ask("GET", "get the version", "version")
        found = re.fullmatch(r"(\d{1,9})\.(\d{1,9})\D*", f"{answer.get('major')}.{answer.get('minor')}")  # minor: 27+
        if found is None:
            raise KubeError("get the version", 0, "", "the answer is no version")
        return int(found[1]), int(found[2])

    async def list(self, resource: Resource, *, limit: int, more: str = "") -> ListPage:
        """A part of the list of all objects of a kind, from the token `more` of the part before; `limit` 0: all.

        Raises:
            KubeError: the server refused or did not answer; `is_expired` if the token is too old.
        """
        query = {"limit": str(limit), "continue": more, **_selected(resource)}
        what = f"list {resource.plural}"
        path = _path(resource, "", resource.namespace)
        try:
            answer = await self._ask("GET", what, path, query=query)
        except KubeError as error:
            if not (error.is_missing and resource.made_by):
                raise
            why = f"the cluster lacks the kind {resource.kind}: apply {resource.made_by}"
            raise KubeError(what, error.code, error.reason, why) from error
        metadata = answer.get("metadata")
        items = answer.get("items") or []
        if not (isinstance(metadata, dict) and metadata.get("resourceVersion") and isinstance(items, list)):
            # All that is missing in a list is gone.
            raise KubeError(what, 0, "", "the answer is not a list")
        return ListPage(items, metadata["resourceVersion"], metadata.get("continue", ""))

    async def watch(self, resource: Resource, version: str, *, for_s: int) -> AsyncIterator[tuple[str, Body]]:
        """Yield the changes of a kind's objects after a version: ADDED, MODIFIED, DELETED or BOOKMARK, with the object.

        The first pair is OPEN with an empty object: the server has begun. The watch ends after `for_s` seconds, or
        earlier if the server ends it.

        Raises:
            KubeError: the server refused, or the watch broke off; `is_expired` if the version is too old, or the next
                event has more than `MOST_BYTES`.
        """
        what = f"watch {resource.plural}"
        query = {
            "watch": "1",
            "resourceVersion": version,
            "allowWatchBookmarks": "1",
            "timeoutSeconds": str(for_s),
            **_selected(resource),
        }
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=ANSWER_S, sock_read=for_s + ANSWER_S)
        async with self._request(
            "GET", what, _path(resource, "", resource.namespace), query=query, timeout=timeout
        ) as response:
            yield "OPEN", {}
            while line := await _line(what, response.content):
                event = _decode(what, line)
                if event.get("type") == "ERROR":
                    raise _refusal(what, 500, event.get("object") or {})
                yield str(event.get("type")), event.get("object") or {}

    async def get(self, resource: Resource, name: str, namespace: str = "") -> Body:
        """Return one object. Raises KubeError (`is_missing` if there is none)."""
        return await self._ask("GET", f"get {_named(resource, name, namespace)}", _path(resource, name, namespace))

    async def create(self, resource: Resource, body: Body, namespace: str = "") -> Body:
        """Return the object as the server has stored it. Raises KubeError (409 AlreadyExists)."""
        name = (body.get("metadata") or {}).get("name", "")
        what = f"create {_named(resource, name, namespace)}"
        path = _path(resource, "", namespace)
        return await self._send("POST", what, path, body)

    async def create_of(self, resource: Resource, name: str, subresource: str, body: Body, namespace: str = "") -> Body:
        """Create a subresource of an object, such as a `token` of a ServiceAccount. Raises KubeError."""
        what = f"create {subresource} of {_named(resource, name, namespace)}"
        return await self._ask("POST", what, _path(resource, name, namespace, subresource), body=body)

    async def patch(
        self, resource: Resource, name: str, change: Body, namespace: str = "", *, subresource: str = ""
    ) -> Body:
        """Merge a change into an object (RFC 7386: None removes a field), and return the changed object.

        With `metadata.resourceVersion` or `metadata.uid` it applies to that state or object only (409 Conflict).
        """
        what = f"patch {_named(resource, name, namespace)}"
        path = _path(resource, name, namespace, subresource)
        return await self._send("PATCH", what, path, change, _MERGE_PATCH)

    async def edit(
        self, resource: Resource, name: str, steps: Sequence[Body], namespace: str = "", *, subresource: str = ""
    ) -> Body:
        """Change an object by steps (RFC 6902), all or none of them, and return the changed object."""
        what = f"patch {_named(resource, name, namespace)}"
        path = _path(resource, name, namespace, subresource)
        return await self._send("PATCH", what, path, steps, _JSON_PATCH)

    async def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str = "",
        *,
        uid: str,
        version: str = "",
        grace_s: int | None = None,
    ) -> None:
        """Delete the object with this UID, and with this resource version if one is given (else 409 Conflict)."""
        body: Body = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": uid}}
        if version:
            body["preconditions"]["resourceVersion"] = version
        if grace_s is not None:
            body["gracePeriodSeconds"] = grace_s
        await self._send(
            "DELETE", f"delete {_named(resource, name, namespace)}", _path(resource, name, namespace), body
        )

    # ---- one request -------------------------------------------------------------------------------------------------

    async def _send(
        self, method: str, what: str, path: str, body: Body | Sequence[Body], content_type: str = "application/json"
    ) -> Body:
        if self._kept is None:
            return await self._ask(method, what, path, body=body, content_type=content_type)
        with self._telling(what):
            answer = await self._kept.ask(method, path, self._headers(content_type), json.dumps(body).encode())
            self._note(what, answer.status)
            if answer.status >= 400:
                raise _refusal(what, answer.status, _status(answer.body))
            return _decode(what, answer.body)

    async def _ask(self, method: str, what: str, path: str, **options: Any) -> Body:
        timeout = aiohttp.ClientTimeout(total=ANSWER_S)
        async with self._request(method, what, path, timeout=timeout, **options) as response:
            return _decode(what, await response.read())

    @asynccontextmanager
    async def _request(
        self,
        method: str,
        what: str,
        path: str,
        *,
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109  # the library's own
        query: Mapping[str, str] | None = None,
        body: Body | Sequence[Body] | None = None,
        content_type: str = "application/json",
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        url = f"{self._client.configuration.host}/{path}" + (f"?{urlencode(query)}" if query else "")
        with self._telling(what):
            answer = await self._client.rest_client.request(  # type: ignore[no-untyped-call]  # the library has no types
                method, url, headers=self._headers(content_type), body=body, _request_timeout=timeout
            )
            async with answer.response as response:
                self._note(what, response.status)
                if response.status >= 400:
                    raise _refusal(what, response.status, _status(await response.read()))
                yield response

    def _headers(self, content_type: str) -> dict[str, str]:
        headers = {**self._client.default_headers, "Accept": "application/json", "Content-Type": content_type}
        self._credentials.renew()
        if token := self._client.configuration.api_key.get("BearerToken"):
            headers["authorization"] = token
        if self._credentials.are_refused:  # a connection shows for all its life the client certificate it was made with
            headers["Connection"] = "close"
        return headers

    def _note(self, what: str, status: int) -> None:
        self._credentials.are_refused = status == 401
        if self._credentials.are_refused:
            if self._kept is not None:
                self._kept.drop()
            raise KubeError(what, 401, "Unauthorized", self._credentials.refused())

    @contextmanager
    def _telling(self, what: str) -> Iterator[None]:
        if not self._may_ask():
            raise KubeError(what, 0, "", NOT_LEADING)
        try:
            yield
        except TimeoutError as error:
            raise KubeError(what, 0, "", f"{self._client.configuration.host} did not answer in time") from error
        except (aiohttp.ClientError, OSError, ValueError, RuntimeError) as error:  # RuntimeError: uvloop's, of a socket
            raise KubeError(what, 0, "", _reason(error)) from error


@asynccontextmanager
async def connect(
    kubeconfig: str, *, now: Callable[[], float] = time.monotonic, may_ask: Callable[[], bool] = lambda: True
) -> AsyncIterator[Kube]:
    """A client of the API server that a kubeconfig names. It connects at its first request. Raises SettingsError.

    `may_ask` tells whether a request may still be made.
    """
    async with loaded(kubeconfig) as settings:
        settings.client_session_kwargs = {
            "read_bufsize": MOST_BYTES // 2,  # aiohttp takes lines of twice that
            "response_class": _ClosingAnswer,
            # aiohttp would look for a proxy at each request, in a thread, which costs as much as the rest of it. It
            # would also look into ~/.netrc, for a server that has its credentials in the kubeconfig.
            "trust_env": bool(getproxies_environment()),
        }
        try:
            client = ApiClient(settings)
        except Exception as error:  # whatever SSL and files raise
            raise unusable(kubeconfig, error) from error
    client.user_agent = SOFTWARE
    _trust_as_kubectl(client.rest_client.ssl_context)
    connector = aiohttp.TCPConnector(
        limit=settings.connection_pool_maxsize, ssl=client.rest_client.ssl_context, socket_factory=_probed_socket
    )
    settings.client_session_kwargs["connector"] = connector
    credentials = ApiCredentials(kubeconfig, client, now)
    kept = None
    if not (settings.proxy or getproxies_environment()):
        kept = KeptConnections(
            settings.host, client.rest_client.ssl_context, server_name=settings.tls_server_name, may_ask=may_ask
        )
    try:
        yield Kube(client, credentials, kept, may_ask)
    finally:
        if kept is not None:
            kept.close()
        await credentials.close()
        await client.close()  # type: ignore[no-untyped-call]  # as above
        # The session does not own it. Without its goodbyes in TLS, which a server may be slow to answer.
        await connector.close(abort_ssl=True)


async def may(api: Kube, verb: str, resource: str, namespace: str = "") -> bool:
    """Whether the account may do something, by a SelfSubjectAccessReview, which every user may make.

    `resource` is as for `kubectl auth can-i`: `pods/status`, `leases.coordination.k8s.io`. Raises KubeError.
    """
    name, _, subresource = resource.partition("/")
    plural, _, group = name.partition(".")
    wanted = {"group": group, "resource": plural, "subresource": subresource, "verb": verb, "namespace": namespace}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": wanted},
    }
    answer = await api.create(RESOURCES["SelfSubjectAccessReview"], review)
    return bool((answer.get("status") or {}).get("allowed"))


async def find(kube: Kube, resource: Resource, name: str, namespace: str = "") -> Body | None:
    """An object; None if there is none. Raises KubeError if the API server refused, or did not answer."""
    try:
        return await kube.get(resource, name, namespace)
    except KubeError as error:
        if not error.is_missing:
            raise
        return None


async def pages(kube: Kube, resource: Resource) -> AsyncIterator[list[Body]]:
    """All objects of a kind, by parts of the list. Raises KubeError, also in the middle."""
    page = await kube.list(resource, limit=PAGE)
    yield page.items
    while page.more:
        page = await kube.list(resource, limit=PAGE, more=page.more)
        yield page.items


async def patch_found(kube: Kube, resource: Resource, found: Body, change: Body, *, subresource: str = "") -> Body:
    """Merge a change into an object, and return it. Raises KubeError (409 Conflict if it is not as it was found)."""
    # A merge patch replaces whole lists: the version keeps what another writer has added from being lost.
    metadata = {"resourceVersion": found["metadata"]["resourceVersion"], **change.get("metadata", {})}
    name = found["metadata"]["name"]
    namespace = found["metadata"].get("namespace", "")
    return await kube.patch(resource, name, {**change, "metadata": metadata}, namespace, subresource=subresource)


async def delete_found(kube: Kube, resource: Resource, found: Body, *, grace_s: int | None = None) -> None:
    """Delete an object that was found, and no later one of its name. Raises KubeError."""
    name = found["metadata"]["name"]
    namespace = found["metadata"].get("namespace", "")
    try:
        await kube.delete(resource, name, namespace, uid=found["metadata"]["uid"], grace_s=grace_s)
    except KubeError as error:
        if not error.is_missing:
            raise


def _trust_as_kubectl(context: ssl.SSLContext) -> None:
    # Many clusters' certificates lack extensions of RFC 5280, such as the Authority Key Identifier: since 3.13 Python
    # refuses them. A kubeconfig's certificate authority may be an intermediate one: before 3.13 Python refused it.
    context.verify_flags = context.verify_flags & ~ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN


# aiohttp would wait up to 30 s for the server's close in TLS, of an answer that is not read to its end. Neither the
# connector nor its client would know of the connection any more, so closing them would leave it open.
class _ClosingAnswer(aiohttp.ClientResponse):
    def close(self) -> None:
        if self.connection is not None and self.connection.transport is not None:  # it is there until the end is read
            self.connection.transport.abort()
        super().close()

    def release(self) -> Any:
        self.close()
        return super().release()


def _probed_socket(address: Any) -> socket.socket:
    # Without TCP keepalive, a watch of a vanished server would wait for minutes.
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _SILENCE_S)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_S)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
    return made


def _selected(resource: Resource) -> dict[str, str]:
    return {"fieldSelector": resource.selector, "labelSelector": resource.labels}


def _path(resource: Resource, name: str = "", namespace: str = "", subresource: str = "") -> str:
    place = f"namespaces/{quote(namespace, safe='')}/" if resource.namespaced and namespace else ""
    parts = [f"{resource.group}/{place}{resource.plural}", *(quote(it, safe="") for it in (name, subresource) if it)]
    return "/".join(parts)


def _named(resource: Resource, name: str, namespace: str) -> str:
    return f"{resource.kind} {namespace}/{name}" if namespace else f"{resource.kind} {name}"


async def _line(what: str, content: aiohttp.StreamReader) -> bytes:
    try:
        return await content.readline()
    except LineTooLong as error:
        raise KubeError(what, 0, _TOO_LARGE, f"an event has more than {MOST_BYTES >> 20} MiB") from error


def _decode(what: str, data: bytes) -> Body:
    try:
        decoded = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise KubeError(what, 0, "", "the answer is not JSON") from error
    if not isinstance(decoded, dict):
        raise KubeError(what, 0, "", "the answer is not an object")
    return decoded


def _status(data: bytes) -> Body:
    try:
        decoded = json.loads(data)
    except (ValueError, RecursionError):
        decoded = None
    return decoded if isinstance(decoded, dict) else {"message": data[:_SHOWN_CHARS].decode(errors="replace")}


def _refusal(what: str, code: int, status: Body) -> KubeError:
    code = status["code"] if isinstance(status.get("code"), int) else code
    reason = str(status.get("reason") or "")
    if reason == "Invalid":  # quotes the values that it does not take
        causes = (status.get("details") or {}).get("causes") or ()
        fields = sorted({str(cause.get("field")) for cause in causes if isinstance(cause, dict)})
        return KubeError(what, code, reason, f"the API server rejects {', '.join(fields) or 'a field'}")
    return KubeError(what, code, reason, str(status.get("message") or reason or f"HTTP status {code}"))


def _reason(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientPayloadError):  # its text is about HTTP's transfer encoding
        return "the answer broke off"
    return str(error) or type(error).__name__
