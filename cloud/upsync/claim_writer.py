"""A claim writer: the status of PersistentVolumeClaims, as the nodes that expand their volumes tell it.

It writes as the kubelet does (docs/csi-contract.md#expansion-on-the-node), by rules for reports that come late:

* The size in `status.capacity` only grows (docs/csi-contract.md#a-claims-size-only-grows).
* A fact is of one claim and one volume. If the claim is another one by now, or bound to another volume, or no pod of
  the node uses it any more, the fact is void.
* That an expansion begins or fails is said of one size, `status.allocatedResources`. The resizer may have gone on to
  another one: then that is void, too, or the new size would fail for the old one's reasons.
* The node speaks while it is its turn. What the resizer has said of its own half, and conditions that are about
  anything else, stay as they are.
"""

from collections.abc import Mapping
from typing import Any, Final, Protocol

from cloud.kube import RESOURCES, Body, KubeError
from cloud.upsync.write_api import WriteApi
from common.objects import Ref
from common.quantity import parse_bytes

_CLAIMS: Final = RESOURCES["PersistentVolumeClaim"]

_PENDING, _IN_PROGRESS, _INFEASIBLE = "NodeResizePending", "NodeResizeInProgress", "NodeResizeInfeasible"
_REPLACED: Final[Mapping[str, frozenset[str]]] = {
    _IN_PROGRESS: frozenset({_PENDING}),
    _INFEASIBLE: frozenset({_PENDING, _IN_PROGRESS}),
}
"""By resize status that is told: those that it takes the place of."""

_NODES_TURN: Final = frozenset({"", _PENDING, _IN_PROGRESS, _INFEASIBLE})
"""Any other resize status is the resizer's own."""

_ERROR: Final = "NodeResizeError"
_RESIZE_CONDITIONS: Final = frozenset({"FileSystemResizePending", "Resizing", "ControllerResizeError", _ERROR})
"""What the kubelet clears once a volume has its size (knownResizeConditions)."""


class NodeClosures(Protocol):
    """What is asked of `cloud.sync.closures.Closures`."""

    @property
    def is_ready(self) -> bool:
        """Whether what is missing in a closure is known to be gone."""

    def holds(self, node: str, ref: Ref) -> bool:
        """Whether the object is in the node's closure."""


class ClaimWriter:
    """Writes what nodes tell of claims."""

    def __init__(self, api: WriteApi, closures: NodeClosures) -> None:
        """Nothing is written yet.

        Args:
            api: where the claims are.
            closures: whose pods use which claims: no other node may tell of them.
        """
        self._api, self._closures = api, closures

    async def write(self, node: str, ref: Ref, fact: Body | None) -> None:
        """Bring a claim's status into line with what a node tells of it. None: the node tells no more, and all stays.

        To be called again when the claim has changed: what was void may count then.

        Raises:
            KubeError: to be tried again.
        """
        if fact is None:
            return
        if not self._closures.holds(node, ref):
            if not self._closures.is_ready:
                raise KubeError(f"patch {ref}", 0, "", "it is not known yet which node's pods use it")
            return
        try:
            claim = await self._api.get(_CLAIMS, ref.name, ref.namespace)
        except KubeError as error:
            if error.is_missing:
                return
            raise
        if not _is_about(fact, claim):
            return
        if change := _change(claim.get("status") or {}, fact["status"]):
            version = {"resourceVersion": claim["metadata"]["resourceVersion"]}
            patch = {"metadata": version, "status": change}
            await self._api.patch(_CLAIMS, ref.name, patch, ref.namespace, subresource="status")

    def forget(self, _node: str, _ref: Ref) -> None:
        """Nothing here is remembered."""

    def problems(self) -> list[str]:
        """Nothing here waits for people."""
        return []


def _is_about(fact: Body, claim: Body) -> bool:
    uid, volume = claim["metadata"]["uid"], claim["spec"].get("volumeName")
    told_uid = (fact.get("metadata") or {}).get("uid")
    told_volume = (fact.get("spec") or {}).get("volumeName")
    return bool(volume) and told_uid == uid and told_volume == volume


def _change(status: Body, told: Body) -> Body:
    """What of a claim's status is to become another one; empty if it is all so."""
    size, told_size = _storage_bytes(status, "capacity"), _storage_bytes(told, "capacity")
    change: dict[str, Any] = {}
    if told_size > size:
        change["capacity"] = {"storage": told["capacity"]["storage"]}
    if _resize_status(status) in _NODES_TURN:
        if _resize_status(told) or _error_of(told):
            change |= _unfinished(status, told)
        elif told_size >= (_storage_bytes(status, "allocatedResources") or size + 1):
            change |= _finished(status) if change or _resize_status(status) else {}
    return change


def _unfinished(status: Body, told: Body) -> Body:
    """It is being expanded, or could not be."""
    if _storage_bytes(told, "allocatedResources") != _storage_bytes(status, "allocatedResources"):
        return {}
    change: dict[str, Any] = {}
    resize_status, error = _resize_status(told), _error_of(told)
    if _resize_status(status) in _REPLACED.get(resize_status, ()):
        change["allocatedResourceStatuses"] = {"storage": resize_status}
    if error is not None and not _says(_error_of(status), error):
        others = [it for it in status.get("conditions") or () if it.get("type") != _ERROR]
        change["conditions"] = [*others, error]
    return change


def _finished(status: Body) -> Body:
    """It is expanded to the size that was asked for."""
    change: dict[str, Any] = {}
    if _resize_status(status):
        others = len(status["allocatedResourceStatuses"]) > 1
        change["allocatedResourceStatuses"] = {"storage": None} if others else None
    kept = [it for it in status.get("conditions") or () if it.get("type") not in _RESIZE_CONDITIONS]
    if kept != (status.get("conditions") or []):
        change["conditions"] = kept or None
    return change


def _resize_status(status: Body) -> str:
    return str((status.get("allocatedResourceStatuses") or {}).get("storage") or "")


def _storage_bytes(status: Body, name: str) -> int:
    """An amount of storage; 0 if there is none, or none that can be read: the API server's own rules may grow."""
    try:
        return parse_bytes((status.get(name) or {}).get("storage", 0))
    except ValueError:
        return 0


def _error_of(status: Body) -> Body | None:
    return next((it for it in status.get("conditions") or () if it.get("type") == _ERROR), None)


def _says(condition: Body | None, told: Body) -> bool:
    """Whether a condition says what is told already. Since when is no other word."""
    return condition is not None and all(condition.get(name) == told.get(name) for name in ("status", "message"))
