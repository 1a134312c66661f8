"""What agents say must be solved on their nodes, for people who look at Kubernetes.

Rules:

* The Node, whether a kubelet or the hub made it, has the condition `csi-bridge.io/StorageProblem` with all problems. It
  turns False when they are solved. A Node without problems does not get it. When a node leaves, the condition stays:
  nobody knows better. `handover` removes it when the node is gone for good.
* Each pod of the node that has a CSI volume and is still Pending gets an Event with all problems: one may be the cause.
  It is written again when they have changed, and when Kubernetes has dropped it.
* A node's problems are written at most every `_PAUSE_S`, and looked at again while they last: new pods may wait.
"""

import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

from cloud.kinds.nodes import PROBLEM, conditions_with
from cloud.kinds.pods import claim_names, inline_drivers
from cloud.kinds.rules.fields import condition_of, part
from cloud.kube.client import RESOURCES, Body, Kube, find, patch_found
from cloud.kube.work_queue import WorkQueue
from cloud.nodes.edge_nodes import Nodes
from cloud.sources.source import Source
from cloud.sync.closures import Closures
from cloud.upsync.event_writer import event, reference, write_event
from common.errors import timestamp

_NODES: Final = RESOURCES["Node"]

_PAUSE_S: Final = 30.0
_MOST_PODS: Final = 20  # pods of a node that get Events
_EVENTS_LAST_S: Final = 3_600.0  # Kubernetes drops Events after this time (`--event-ttl` of its API server)
_MOST_CHARS: Final = 900  # of all problems: an Event's message has 1,024


class NodeProblems:
    """Writes the nodes' problems, until `close`."""

    def __init__(
        self,
        api: Kube,
        source: Source,
        nodes: Nodes,
        closures: Closures,
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._source = source
        self._nodes = nodes
        self._closures = closures
        self._now = now
        self._next: dict[str, float] = {}
        # By node: the UIDs of pods with an Event, its text, and when it was written
        self._told: dict[str, dict[tuple[str, str], float]] = {}
        self._queue: WorkQueue[str] = WorkQueue(self._write)
        self.problems = self._queue.problems
        self.close = self._queue.close
        nodes.problems_told = self._queue.add

    async def _write(self, node: str) -> float | None:
        if (wait_s := self._next.get(node, 0.0) - self._now()) > 0:
            return wait_s
        self._next.pop(node, None)
        told = self._told.pop(node, {})
        if (visit := self._nodes.of(node).visit) is None:
            return None
        if not self._source.is_ready:  # after a start of the hub: nobody asks for each Node
            return _PAUSE_S
        problems = visit.problems
        text = "; ".join(problems)[:_MOST_CHARS]
        now = self._now()
        await self._write_condition(node, text)
        if not problems:
            return None
        self._told[node] = {it: at for it, at in told.items() if it[1] == text and now - at < _EVENTS_LAST_S}
        for pod in islice(self._waiting_pods(node), _MOST_PODS):
            if (key := (pod.get("uid", ""), text)) not in self._told[node]:
                made = event(
                    pod,
                    "csi-bridge-problem",
                    cause=(node, text),
                    reason="StorageProblem",
                    text=f"edge node {node} says: {text}",
                    at=time.time(),
                    kind="Warning",
                )
                await write_event(self._api, made)
                self._told[node][key] = now
        self._next[node] = self._now() + _PAUSE_S
        return _PAUSE_S

    async def _write_condition(self, node: str, problem: str) -> None:
        state = self._source.node_state(node)
        if (state.problem if state is not None else "") == problem:
            return
        if (found := await find(self._api, _NODES, node)) is None:
            return
        old = condition_of(part(found, "status"), PROBLEM)
        status = "True" if problem else "False"
        if not (problem or old) or (old.get("status"), old.get("message", "")) == (status, problem):
            return
        reason = "AgentToldProblems" if problem else "NoProblem"
        new = {"type": PROBLEM, "status": status, "reason": reason, "message": problem}
        change = {"conditions": conditions_with(found, new, at=timestamp(time.time()))}
        await patch_found(self._api, _NODES, found, {"status": change}, subresource="status")

    def _waiting_pods(self, node: str) -> Iterator[Body]:
        for ref in self._closures.pods(node):
            body = self._source.body(ref)
            if body is None or (body.get("status") or {}).get("phase") not in {None, "Pending"}:
                continue
            if claim_names(body) or inline_drivers(body):
                yield reference("Pod", body)
