"""The mount guard: holds a ControllerUnpublishVolume back while its node has the volume mounted, or may have.

Kubernetes detaches a volume by force six minutes after its last pod on a node is gone, if the node is not Ready. The
node may be cut off, and write on. Then the volume must not go to a second writer.

Rules:

* The call passes if its node says that it does not use the volume, if an operator has fenced the node
  (`cloud.detach.fences`), or if its Node has the taint out-of-service. `why_held` has the table.
* A machine that takes a node's name clears nothing of the machine before it (`Mounts.earlier_use`): an operator has to
  say that this one is off.
* It also passes if the node's agent has surely fenced the volume by its own clock. The agent must have told that it has
  staged the volume and fences it (`common.objects.offline_policy`), and the PersistentVolume must ask for that now.
  While the agent stages it, a driver may mount it at any moment. The hub has the agent's word in its records.
* The wait begins when the node's last link ended, or when this hub started: the hub has answered no ping of the agent
  since. It lasts the agent's lease, plus the time of the watchdog that resets the node's machine if its agent does not
  fence. The clock stands still while the hub's machine is suspended, so the wait only becomes longer. The hub cannot
  know whether the node's machine stood still as a whole: an agent fences only if its operator has said that it never
  does (`edge.fencing`).
* The call names a node by the vendor's id. The VolumeAttachments of the volume say which nodes that may be, and no
  node can write these. Without one, every node that may have the id counts. If several remain, all of them must be
  free: the hub does not guess.
* A node that the hub and the cluster know nothing of holds nothing back. It has no name to wait for or to fence, and
  nobody would ever free its volumes: an administrator has deleted its Node, or let the hub forget it.
* The guard lets the call pass if the node itself would serve it and has no link: it cannot be sent anyway.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from cloud.detach.absences import Absences
from cloud.detach.fences import Fences
from cloud.detach.mounts import Mounts
from cloud.nodes.edge_nodes import DRIFT, Nodes
from cloud.sync.fact_kinds import name_in_use
from cloud.trust import audit
from cloud.trust.audit import Event
from common.csi.csi_pb2 import ControllerUnpublishVolumeRequest, NodeGetInfoResponse
from common.csi.reports import NODE_GET_INFO
from common.errors import VolumeHeld, timestamp
from common.objects.offline_policy import ANNOTATION, FENCE
from common.wording import shorten

log = logging.getLogger("csi_bridge.hub.fences")

WATCHDOG_DRIFT: Final = 1.1  # as `DRIFT`: a watchdog has an oscillator of its own, and often counts in coarse steps
RESET_S: Final = 5.0  # from the end of that time until the machine writes nothing more, its adapters included

_MOST_NOTED: Final = 10_000  # Fenced volumes that are noted in the log once. Above that, the notes begin anew.
_SHOWN_CHARS = 200  # of an id in a message
_REMEMBERED_S = 600.0  # external-attacher repeats a failed detach at least every five minutes (--retry-interval-max)
_MOST_REMEMBERED = 1_000


class VolumeView(NamedTuple):
    """The hub's knowledge of a volume on a node."""

    # an earlier machine of this node name had it in use, and no operator has said that the earlier machine is off.
    used_by_earlier_machine: bool
    absence: str  # how the node is away; empty if it is not
    is_given_up: bool  # an operator has fenced the node, or its Node has the taint out-of-service
    is_mounted: bool | None  # None: not known
    is_wanted: bool  # a pod on this node that has not ended, and is not being deleted, mounts the volume
    tells_all: bool  # a node that is not away would have told that it uses the volume


def why_held(view: VolumeView) -> str:
    """Why a volume stays attached to a node, as the part of a sentence; empty if it may be detached.

    node is      it uses the volume      the call
    given up     (any)                   passes
    (any)        an earlier machine did  is held
    away         yes, or not known       is held
    away         no                      passes
    here         yes                     is held: it is back after a forced detach, and has not unmounted yet
    here         yes, a pod wants it     passes: agent and kubelet list a volume as soon as a pod wants it, and this pod
                                         may wait for the detach, to get the volume anew
    here         not known               is held if every node tells that; without a cluster, it passes
    here         no                      passes
    """
    if view.is_given_up:
        return ""
    if view.used_by_earlier_machine:
        return "an earlier machine of this name had it mounted"
    if view.absence:
        if view.is_mounted:
            return f"{view.absence}, and had it mounted"
        return f"{view.absence}, and may have it mounted" if view.is_mounted is None else ""
    if view.is_mounted:
        return "" if view.is_wanted else "it still has it mounted"
    return "it has not told whether it has it mounted" if view.is_mounted is None and view.tells_all else ""


class MountGuard:
    """Guards the mounts of all nodes."""

    def __init__(
        self,
        nodes: Nodes,
        mounts: Mounts,
        absences: Absences,
        fences: Fences,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._nodes = nodes
        self._mounts = mounts
        self._absences = absences
        self._fences = fences
        self._monotonic = monotonic
        self._noted: set[tuple[str, str, float]] = set()
        # By driver, volume and node id: when the last call was held, and its error.
        self._held: dict[tuple[str, str, str], tuple[float, str]] = {}

    def check(self, driver: str, request: bytes, serving: str) -> None:
        """Check a ControllerUnpublishVolume before it is sent to the node `serving`. Raises VolumeHeld."""
        try:
            asked = ControllerUnpublishVolumeRequest.FromString(request)
        except DecodeError:  # no driver reads it
            return
        key = (driver, asked.volume_id, asked.node_id)
        self._held.pop(key, None)
        try:
            self._check(driver, asked.volume_id, asked.node_id, serving)
        except VolumeHeld as error:
            self._held[key] = self._monotonic(), str(error)
            if len(self._held) > _MOST_REMEMBERED:
                del self._held[next(iter(self._held))]
            raise

    def problems(self) -> Iterator[str]:
        since = self._monotonic() - _REMEMBERED_S
        yield from (why for at, why in self._held.values() if at > since)

    def _check(self, driver: str, volume: str, node_id: str, serving: str) -> None:
        shown = shorten(volume, _SHOWN_CHARS)
        if not self._mounts.is_ready:
            why = "the hub has not read all objects yet; retry later"
            raise VolumeHeld(driver, shown, shorten(node_id, _SHOWN_CHARS), why)
        for node in self._nodes_of(driver, volume, node_id):
            if node == serving and not self._nodes.is_connected(node):
                continue
            view = self._view(node, driver, volume)
            # the lease is that of the present machine
            lease_may_clear = bool(view.absence) and not view.used_by_earlier_machine
            if why := why_held(view):
                why_not_fenced = self._why_not_fenced(node, driver, volume) if lease_may_clear else ""
                if why_not_fenced is not None:
                    raise VolumeHeld(driver, shown, node, f"{why}{why_not_fenced}; {_remedy(node, view)}")

    def _why_not_fenced(self, node: str, driver: str, volume: str) -> str | None:
        # The rest of a sentence about a node that is away; None if it surely has fenced the volume.
        if not self._mounts.asks_for_fence(driver, volume):
            return ""
        told = self._mounts.told_fence(node)
        name = name_in_use(driver, volume)
        left = self._nodes.of(node).gone_at()
        if told is not None and name in told.staging:
            return "; its agent has not told how a call ended that may mount it, so it does not go by time"
        # The end of the link is not known for a node that is being forgotten.
        if told is None or name not in told.staged or left is None or not self._nodes.knows(node):
            return f"; {ANNOTATION}: {FENCE} does not count, because its agent has not told that it fences the volume"
        bound_s = told.lease_s * DRIFT + told.watchdog_s * WATCHDOG_DRIFT + RESET_S
        if self._monotonic() < left.monotonic + bound_s:
            return f"; its agent fences the volume, which can be detached from {timestamp(left.wall + bound_s)} on"
        if (node, name, left.monotonic) not in self._noted:
            if len(self._noted) >= _MOST_NOTED:
                self._noted.clear()
            self._noted.add((node, name, left.monotonic))
            audit.add(Event.FENCE, who=node, volume=name, why="the lease of its agent has ended")
            line = "the lease of node %s has ended, and its agent has fenced volume %s: it may be detached"
            log.warning(line, node, name)
        return None

    def _view(self, node: str, driver: str, volume: str) -> VolumeView:
        in_use = self._mounts.in_use(node)
        name = name_in_use(driver, volume)
        is_mounted = name in in_use if in_use is not None else None
        return VolumeView(
            name in self._mounts.earlier_use.get(node, ()),
            self._absences.of(node),
            self._fences.is_given_up(node),
            is_mounted,
            bool(is_mounted) and self._mounts.is_wanted(node, driver, volume),
            self._mounts.tells_all,
        )

    def _nodes_of(self, driver: str, volume: str, node_id: str) -> list[str]:
        # An empty id means every node (CSI spec, ControllerUnpublishVolume).
        attached = self._mounts.attached(driver, volume)
        if node_id:
            found = [node for node, at_attach in attached.items() if self._may_have(node, driver, node_id, at_attach)]
            found = found or list(self._with_id(driver, node_id)) or list(attached)
        else:
            found = list(attached) or list(self._nodes.with_driver(driver))
        return sorted(node for node in found if self._absences.knows(node))

    def _may_have(self, node: str, driver: str, node_id: str, at_attach: str) -> bool:
        # A node without any known id may be the one.
        known = {at_attach, *self._ids(node, driver)} - {""}
        return node_id in known or not known

    def _with_id(self, driver: str, node_id: str) -> Iterable[str]:
        nodes = {*self._mounts.nodes(), *self._nodes.with_driver(driver)}
        return (node for node in nodes if node_id in self._ids(node, driver))

    def _ids(self, node: str, driver: str) -> tuple[str, str]:
        report = self._nodes.find_report(driver, node)
        answer = report.answers.get(NODE_GET_INFO) if report is not None else None
        try:
            told = NodeGetInfoResponse.FromString(answer.body).node_id if answer is not None else ""
        except DecodeError:
            told = ""
        return self._mounts.node_id(driver, node), told


def _remedy(node: str, view: VolumeView) -> str:
    if view.used_by_earlier_machine:
        return (
            f"if that machine is off for certain, or was started anew since, run csi-bridge fence {node} on the hub's "
            f"host or give its Node the taint node.kubernetes.io/out-of-service"
        )
    if not view.absence:
        return "it is detached when the node has told that it is unmounted"
    return (
        f"bring the node back, or, if its machine is off for certain, run csi-bridge fence {node} on the hub's host or "
        f"give its Node the taint node.kubernetes.io/out-of-service"
    )
