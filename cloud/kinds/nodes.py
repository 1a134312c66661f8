"""Nodes, which the hub sends to the node itself: the labels that bind volumes, and the attached volumes.

The rest of a Node's status changes every few minutes and does not concern the node's mounting. The hub keeps a few
words of it to itself (`NodeState`): they say whether a volume may be detached (`cloud.detach.mount_guard`).
"""

import json
from typing import Any, Final, NamedTuple

from cloud.kinds.rules.fields import Body, Fields, condition_of, part
from cloud.kinds.rules.kind_rules import KindRules, pick, without_empty


def _check(fields: Fields) -> None:
    status = fields.part("status")
    for volume in status.parts("volumesAttached"):
        volume.text("name", required=True)


def _trim(body: Body) -> dict[str, Any]:
    return without_empty({"status": pick(body.get("status"), "volumesAttached")})


NODE_IDS: Final = "csi.volume.kubernetes.io/nodeid"  # the annotation with the drivers' ids for the node, as JSON

# The taint by which an administrator says that a node is shut down (KEP-2268). A kubelet may not set it.
OUT_OF_SERVICE: Final = "node.kubernetes.io/out-of-service"


PROBLEM: Final = "csi-bridge.io/StorageProblem"  # the condition with what the node's agent says must be solved there


class NodeState(NamedTuple):
    """The state of a Node that the hub keeps to itself."""

    ready: str  # the status of its condition Ready: True, False or Unknown; empty without the condition
    since: str  # the time of the condition's last transition, as Kubernetes writes it; may be empty
    in_use: frozenset[str]  # its `volumesInUse`
    is_out_of_service: bool  # whether it has the taint `OUT_OF_SERVICE`, with any effect
    problem: str = ""  # the message of its condition `PROBLEM` while that is True; else empty

    @property
    def is_ready(self) -> bool:
        return self.ready == "True"


def read_ids(text: str) -> dict[str, str] | None:
    """The ids of the annotation `NODE_IDS`, by driver; None if it has another form."""
    try:
        ids = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return None
    return ids if isinstance(ids, dict) and all(isinstance(it, str) for it in ids.values()) else None


def in_use(node: Body) -> list[str]:
    return list((node.get("status") or {}).get("volumesInUse") or ())


def conditions_with(node: Body, new: Body, *, at: str) -> list[Body]:
    """A Node's conditions with a new one. It keeps the time of its last transition while its status stays."""
    status = part(node, "status")
    old = condition_of(status, new["type"])
    since = old.get("lastTransitionTime", at) if old.get("status") == new["status"] else at
    others = [it for it in status.get("conditions") or () if it["type"] != new["type"]]
    return [*others, {**new, "lastHeartbeatTime": at, "lastTransitionTime": since}]


def state_of(fields: Fields) -> NodeState:
    status = fields.part("status")
    conditions = {it.text("type"): it for it in status.parts("conditions")}
    ready = conditions.get("Ready", Fields({}))
    problem = conditions.get(PROBLEM, Fields({}))
    taints = fields.part("spec").parts("taints")
    return NodeState(
        ready.text("status"),
        ready.text("lastTransitionTime"),
        frozenset(status.texts("volumesInUse")),
        any(taint.text("key") == OUT_OF_SERVICE for taint in taints),
        problem.text("message") if problem.text("status") == "True" else "",
    )


RULES: Final = KindRules(kind="Node", api_version="v1", namespaced=False, check=_check, trim=_trim)
