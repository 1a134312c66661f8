"""A claim writer: writes the status of PersistentVolumeClaims from the reports of nodes that expand their volumes.

It writes as the kubelet does (docs/csi-contract.md#expansion-on-the-node), by rules for reports that come late:

* The size in `status.capacity` only grows (docs/csi-contract.md#a-claims-size-only-grows).
* A fact is about one claim and one volume. It is void if the claim was made anew, is bound to another volume, or no pod
  of the node uses it any more.
* A report that an expansion begins or fails is about one size, `status.allocatedResources`. If the resizer has gone on
  to another size, the report is void.
* A node's report counts only in the node's part of an expansion. The resizer's statuses and conditions of other kinds
  stay as they are.
"""

from collections.abc import Mapping
from typing import Any, Final

from cloud.kinds.rules.fields import condition_of
from cloud.kube.client import RESOURCES, Body, Kube, KubeError, find, patch_found
from cloud.sync.closures import Closures
from cloud.upsync.writer import FactWriter
from common.objects.objects import Ref
from common.objects.quantity import bytes_of

_CLAIMS: Final = RESOURCES["PersistentVolumeClaim"]

_PENDING = "NodeResizePending"
_IN_PROGRESS = "NodeResizeInProgress"
_INFEASIBLE = "NodeResizeInfeasible"
# By reported resize status: the statuses that it replaces.
_REPLACED: Final[Mapping[str, frozenset[str]]] = {
    _IN_PROGRESS: frozenset({_PENDING}),
    _INFEASIBLE: frozenset({_PENDING, _IN_PROGRESS}),
}

_NODES_TURN: Final = frozenset({"", _PENDING, _IN_PROGRESS, _INFEASIBLE})  # any other status is the resizer's own

_ERROR: Final = "NodeResizeError"
# The conditions that the kubelet removes when a volume has its size (knownResizeConditions).
_RESIZE_CONDITIONS: Final = frozenset({"FileSystemResizePending", "Resizing", "ControllerResizeError", _ERROR})


class ClaimWriter(FactWriter):
    """Writes the nodes' facts about claims."""

    def __init__(self, api: Kube, closures: Closures) -> None:
        super().__init__(api)
        self._closures = closures

    async def write(self, node: str, ref: Ref, fact: Body | None) -> None:
        if fact is None:
            return
        if not self._closures.holds(node, ref):
            if not self._closures.is_ready:
                raise KubeError(f"patch {ref}", 0, "", "it is not known yet which node's pods use it")
            return
        claim = await find(self._api, _CLAIMS, ref.name, ref.namespace)
        if claim is None or not _is_about(fact, claim):
            return
        if change := _change(claim.get("status") or {}, fact["status"]):
            await patch_found(self._api, _CLAIMS, claim, {"status": change}, subresource="status")


def _is_about(fact: Body, claim: Body) -> bool:
    uid = claim["metadata"]["uid"]
    volume = claim["spec"].get("volumeName")
    told_uid = (fact.get("metadata") or {}).get("uid")
    told_volume = (fact.get("spec") or {}).get("volumeName")
    return bool(volume) and told_uid == uid and told_volume == volume


def _change(status: Body, told: Body) -> Body:
    size = _storage_bytes(status, "capacity")
    told_size = _storage_bytes(told, "capacity")
    change: dict[str, Any] = {}
    if told_size > size:
        change["capacity"] = {"storage": told["capacity"]["storage"]}
    if _resize_status(status) in _NODES_TURN:
        if _resize_status(told) or condition_of(told, _ERROR):
            change |= _unfinished(status, told)
        # Without `allocatedResources` no expansion is under way, so only a size above the known one ends one.
        elif told_size >= (_storage_bytes(status, "allocatedResources") or size + 1):
            change |= _finished(status) if change or _resize_status(status) else {}
    return change


def _unfinished(status: Body, told: Body) -> Body:
    if _storage_bytes(told, "allocatedResources") != _storage_bytes(status, "allocatedResources"):
        return {}
    change: dict[str, Any] = {}
    resize_status = _resize_status(told)
    error = condition_of(told, _ERROR)
    if _resize_status(status) in _REPLACED.get(resize_status, ()):
        change["allocatedResourceStatuses"] = {"storage": resize_status}
    known = condition_of(status, _ERROR)
    if error and any(known.get(name) != error.get(name) for name in ("status", "message")):
        others = [it for it in status.get("conditions") or () if it.get("type") != _ERROR]
        change["conditions"] = [*others, error]
    return change


def _finished(status: Body) -> Body:
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
    return bytes_of((status.get(name) or {}).get("storage", 0))
