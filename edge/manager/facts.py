"""The volume facts: Events about this node's volumes, and the status of their claims, for the hub.

Rules:

* The text of an Event has no time and no count, so a cause that lasts is one Event. The agent sends it again at most
  every five minutes, with its count.
* A fact about a claim is complete: size, resize status and conditions. The hub clears a field that is empty in it.
* A fact about a claim names its volume: the claim may be bound to another volume before the hub gets the fact. If an
  expansion begins or fails, the fact also names the requested size: the claim may request another size by then.
* The store keeps the facts until the hub has them. No function here waits.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from common.errors import timestamp
from common.objects.objects import Ref
from common.objects.quantity import format_bytes
from common.store.fault_points import reach
from edge.stores.fact_store import FactStore
from edge.volumes import BoundClaim, Pod
from edge.wanted.clock import Clock
from edge.wanted.expansion import IN_PROGRESS, INFEASIBLE

COMPONENT = "csi-bridge-edge"

# An Event is sent again after this at the earliest: client-go's event limiter also allows one in five minutes.
_AGAIN_S = 300.0

# The counts of so many causes are kept. The count of an older cause starts again at one.
_MOST_CAUSES = 1_000

_LONGEST_MESSAGE = 1_024  # characters of an event's message: the API server's limit (core validation, events)

# Characters of an object's name in the name of its Event: a name has 253, and a hash of the cause takes 17 of them.
_LONGEST_NAME = 236


@dataclass(slots=True)
class _Cause:
    count: int
    first: float
    told: float


class VolumeFacts:
    """The facts about this node's volumes."""

    def __init__(self, facts: FactStore, *, node: str, clock: Clock) -> None:
        self._facts = facts
        self._node = node
        self._clock = clock
        self._causes: OrderedDict[tuple[str, str, str, str], _Cause] = OrderedDict()
        self._conditions: dict[tuple[str, str], tuple[str, str]] = {}

    # ---- events ------------------------------------------------------------------------------------------------------

    def tell_pod(self, pod: Pod, reason: str, message: str, *, warning: bool = True) -> None:
        self._tell_event(_about("Pod", pod), reason, message, warning=warning)

    def tell_claim(self, claim: BoundClaim, reason: str, message: str, *, warning: bool = True) -> None:
        self._tell_event(_about("PersistentVolumeClaim", claim), reason, message, warning=warning)

    def tell_node(self, reason: str, message: str) -> None:
        about = {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": self._node}
        self._tell_event(about, reason, message, warning=True)

    def _tell_event(self, about: Mapping[str, str], reason: str, message: str, *, warning: bool) -> None:
        message = message[:_LONGEST_MESSAGE]
        key = (self._node, about["uid"], reason, message)  # two nodes may say the same of one claim
        now = self._clock.time()
        cause = self._causes.setdefault(key, _Cause(0, now, float("-inf")))
        self._causes.move_to_end(key)
        cause.count += 1
        if len(self._causes) > _MOST_CAUSES:
            self._causes.popitem(last=False)
        if 0 <= now - cause.told < _AGAIN_S:  # a clock that was put back tells again
            return
        cause.told = now
        namespace = about.get("namespace", "default")
        short = about["name"][:_LONGEST_NAME].rstrip(".-")
        name = f"{short}.{hashlib.sha256(repr(key).encode()).hexdigest()[:16]}"
        self._facts.put(
            Ref("Event", namespace, name),
            {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"namespace": namespace, "name": name},
                "involvedObject": dict(about),
                "reason": reason,
                "message": message,
                "type": "Warning" if warning else "Normal",
                "count": cause.count,
                "firstTimestamp": timestamp(cause.first),
                "lastTimestamp": timestamp(now),
                "source": {"component": COMPONENT, "host": self._node},
                "reportingComponent": COMPONENT,
                "reportingInstance": self._node,
            },
        )

    # ---- claims ------------------------------------------------------------------------------------------------------

    def expanding(self, claim: BoundClaim) -> None:
        """This node begins to expand the volume. An earlier failure stays in the fact until an expansion succeeds."""
        self._put_claim(claim, claim.status_bytes, IN_PROGRESS, self._condition(claim), claim.allocated_bytes)

    def expanded(self, claim: BoundClaim, size_bytes: int) -> None:
        self._conditions.pop((claim.namespace, claim.name), None)
        self._put_claim(claim, size_bytes, "", None)

    def not_expanded(self, claim: BoundClaim, why: str, *, infeasible: bool) -> None:
        message = f"the volume could not be expanded on its node: {why}"[:_LONGEST_MESSAGE]
        known, since = self._conditions.get((claim.namespace, claim.name), ("", ""))
        if known != message:  # the time of the same condition stays: the fact is the same
            since = timestamp(self._clock.time())
            self._conditions[claim.namespace, claim.name] = (message, since)
        status = INFEASIBLE if infeasible else claim.resize_status and IN_PROGRESS
        self._put_claim(claim, claim.status_bytes, status, self._condition(claim), claim.allocated_bytes)

    def _condition(self, claim: BoundClaim) -> dict[str, str] | None:
        message, since = self._conditions.get((claim.namespace, claim.name), ("", ""))
        if not message:
            return None
        return {"type": "NodeResizeError", "status": "True", "lastTransitionTime": since, "message": message}

    def claims(self) -> list[Ref]:
        return self._facts.refs("PersistentVolumeClaim")

    def forget_claim(self, namespace: str, name: str) -> None:
        self._conditions.pop((namespace, name), None)
        self._facts.drop(Ref("PersistentVolumeClaim", namespace, name))

    def _put_claim(
        self,
        claim: BoundClaim,
        size_bytes: int,
        resize_status: str,
        condition: dict[str, str] | None,
        allocated_bytes: int | None = None,
    ) -> None:
        reach("facts.before-claim")
        asked = {} if allocated_bytes is None else {"allocatedResources": {"storage": format_bytes(allocated_bytes)}}
        self._facts.put(
            Ref("PersistentVolumeClaim", claim.namespace, claim.name),
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"namespace": claim.namespace, "name": claim.name, "uid": claim.uid},
                "spec": {"volumeName": claim.volume},
                "status": {
                    "capacity": {"storage": format_bytes(size_bytes)},
                    **asked,
                    "allocatedResourceStatuses": {"storage": resize_status} if resize_status else {},
                    "conditions": [condition] if condition else [],
                },
            },
        )
        reach("facts.after-claim")


def _about(kind: str, one: Pod | BoundClaim) -> dict[str, str]:
    return {"apiVersion": "v1", "kind": kind, "namespace": one.namespace, "name": one.name, "uid": one.uid}
