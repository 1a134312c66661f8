"""A pod writer: writes the state of pods' volumes on nodes without a kubelet, and ends pods that are being deleted.

Rules:

* It writes only for Nodes that the hub made, which have no kubelet. If a pod vanished from Kubernetes while a kubelet
  still ran it, it could be started a second time.
* A pod that is being deleted ends when its node has reported that nothing of its volumes is left. The hub then deletes
  it with grace 0, as a kubelet does last, and by its UID.
* When all volumes of a pod are mounted, an Event says so, and that no kubelet starts the containers. Nothing else
  explains why the pod stays Pending. The Event is written before its condition, so that each change has one Event.
* Other conditions stay. A condition's time is the hub's: a node's clock may be wrong.
"""

import logging
import time
from collections.abc import Callable
from typing import Final

from cloud.kinds.rules.fields import Body as Part
from cloud.kinds.rules.fields import condition_of, part
from cloud.kube.client import RESOURCES, Body, Kube, KubeError, delete_found, find, patch_found
from cloud.upsync.event_writer import MOST_CHARS, EventWriter, event, reference
from cloud.upsync.ownership import is_made
from cloud.upsync.writer import FactWriter
from common.errors import timestamp
from common.objects.objects import Ref
from common.objects.pod_fact import MOUNTED, RELEASED, VolumeState, read_volumes, shorten

log = logging.getLogger("csi_bridge.hub.upsync")

_PODS: Final = RESOURCES["Pod"]
_NODES: Final = RESOURCES["Node"]
_LONGEST_NAME_CHARS: Final = 236  # of a pod in the name of its Event, which has 253 with the digest
_LEAST_REASON_CHARS: Final = 60  # of a message for one volume's reason: several volumes share the message


class PodWriter(FactWriter):
    """Writes the nodes' facts about their pods."""

    def __init__(self, api: Kube, *, now: Callable[[], float] = time.time) -> None:
        super().__init__(api)
        self._now, self._events = now, EventWriter(api)

    async def write(self, node: str, ref: Ref, fact: Body | None) -> None:
        self._problems.pop((node, ref), None)
        pod = await find(self._api, _PODS, ref.name, ref.namespace) if fact is not None else None
        if fact is None or pod is None:
            return
        if fact["metadata"]["uid"] != pod["metadata"]["uid"] or pod["spec"].get("nodeName") != node:
            return
        told = _in_words(fact["status"])
        ends = _is_true(fact["status"], RELEASED) and _is_waited_for(pod)
        conditions = _merged(pod, told, timestamp(self._now()))
        if not ends and conditions is None:
            return
        if not is_made(await self._api.get(_NODES, node)):
            if ends:
                why = (
                    f"{ref} is being deleted and has no volume on node {node} any more, but the hub did not make that "
                    f"Node, and a kubelet may still run the pod: if there is none, delete the pod with "
                    f"--grace-period=0 --force"
                )
                self._problems[node, ref] = [why]
        elif ends:
            await delete_found(self._api, _PODS, pod, grace_s=0)
        else:
            if _is_true(fact["status"], MOUNTED) and not _is_true(part(pod, "status"), MOUNTED):
                await self._tell_mounted(node, ref, pod)
            await patch_found(self._api, _PODS, pod, {"status": {"conditions": conditions}}, subresource="status")

    async def _tell_mounted(self, node: str, ref: Ref, pod: Body) -> None:
        told = event(
            reference("Pod", pod),
            ref.name[:_LONGEST_NAME_CHARS].rstrip(".-"),
            cause=(),
            reason="VolumesMounted",
            text=(
                f"All volumes are mounted on node {node}. No kubelet runs there, so Kubernetes does not start the "
                f"pod's containers. On the node, csi-bridge edge volumes shows where each volume is mounted"
            ),
            at=self._now(),
            kind="Normal",
        )
        try:
            await self._events.write(node, Ref("Event", ref.namespace, told["metadata"]["name"]), told)
        except KubeError as error:
            if not error.is_forbidden:  # a cluster's policy may forbid it for good; the condition is still written
                raise
            log.info("%s gets no event that its volumes are mounted: %s", ref, error)


def _is_true(status: Part, kind: str) -> bool:
    return condition_of(status, kind).get("status") == "True"


def _is_waited_for(pod: Body) -> bool:
    metadata = pod["metadata"]
    # With 0 its node has let it go, and it waits for the owner of a finalizer.
    return bool(metadata.get("deletionTimestamp")) and metadata.get("deletionGracePeriodSeconds") != 0


def _in_words(status: Body) -> list[Body]:
    waiting = [one for one in (read_volumes(status) or {}).values() if one.state is not VolumeState.MOUNTED]
    most_chars = max(_LEAST_REASON_CHARS, MOST_CHARS // (len(waiting) or 1))
    whys = ((one.name, shorten(one.reason, most_chars)) for one in waiting)
    sentence = "; ".join(f"{name}: {why}" if name and why else name or why for name, why in whys)
    told = {"message": shorten(sentence, MOST_CHARS)} if sentence else {}
    return [{**it, **told} if it["type"] == MOUNTED else it for it in status["conditions"]]


def _merged(pod: Body, told: list[Body], now: str) -> list[Body] | None:
    there = part(pod, "status").get("conditions") or ()
    known = {it.get("type"): it for it in there}
    new: dict[str, Body] = {}
    for it in told:
        old = known.get(it["type"], {})
        if any((old.get(name) or "") != it.get(name, "") for name in ("status", "reason", "message")):
            since = old.get("lastTransitionTime") if old.get("status") == it["status"] else None
            new[it["type"]] = {**it, "lastTransitionTime": since or now}
    # All of them, because a patch replaces the list.
    return [*(it for it in there if it.get("type") not in new), *new.values()] if new else None
