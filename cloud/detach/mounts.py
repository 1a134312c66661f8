"""The mounts: the nodes that a volume is attached to, and the volumes that each node uses, as far as the hub can know.

Rules:

* The objects say where a volume is attached: its VolumeAttachments. A node cannot write these.
* On a node without a kubelet, the agent's fact about its Node has the volumes in use. The hub has stored that before
  the agent stages a volume for the first time (docs/csi-contract.md#volumesinuse-comes-before-staging). So a node's
  closure says nothing more: a volume of its pods that is not in use has never been staged, or no longer is.
* On a node with a kubelet, the Node's `status.volumesInUse` has them, while the hub's copy of Nodes is up to date.
* A node's facts are those of its present machine. `earlier_use` has the volumes that earlier machines of its name had
  in use.
* Unknown is not unused: `in_use` is None then.
* A volume is fenced if its PersistentVolume asks for that, and if the node's agent has told that it does it. The hub
  stores that before the agent stages the volume, too.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from cloud.kinds import pods, volumeattachments
from cloud.kinds.nodes import NODE_IDS, NodeState, read_ids
from cloud.kinds.persistentvolumes import class_of, handle_of, is_claimed_by
from cloud.kinds.rules.fields import Body, part
from cloud.sources.index import Index, Key
from cloud.sources.source import Source
from cloud.sync.fact_kinds import IN_USE_PREFIX, Fact
from cloud.sync.fact_table import FactTable
from cloud.upsync.ownership import HUB, MADE_BY, annotation
from common.objects import offline_policy
from common.objects.objects import Ref
from common.objects.offline_policy import ToldFence

_ATTACHMENT = "VolumeAttachment"
_VOLUME = "PersistentVolume"

# The annotation of a VolumeAttachment with the node id that external-attacher used (its csi_handler.go).
_ID_AT_ATTACH: Final = "csi.alpha.kubernetes.io/node-id"

_NO_NODE: Final = NodeState("", "", frozenset(), is_out_of_service=False)


class Mounts:
    """Looks volumes up in one source and in the nodes' facts."""

    def __init__(self, source: Source, facts: FactTable | None) -> None:
        """Follow the source from now on. `facts` is None if this hub takes none."""
        self._source = source
        self._facts = facts
        # By node: the volumes that earlier machines of this name had in use.
        self.earlier_use: Mapping[str, frozenset[str]] = facts.earlier_use if facts is not None else {}
        self._volumes = Index(source, _VOLUME, handle_of)
        self._attachments = Index(source, _ATTACHMENT, _volume)

    @property
    def is_ready(self) -> bool:
        """Whether every object of a cluster was read once. Before that, nothing of the below proves anything.

        Manifests need not be ready: a directory that is empty, or was never good as a whole, never is. Then the links
        and the nodes' own facts tell all that is known.
        """
        return self._source.is_ready or not self._source.is_cluster

    def has_node(self, node: str) -> bool:
        return self._source.body(Ref("Node", "", node)) is not None

    def attached(self, driver: str, volume: str) -> Mapping[str, str]:
        """The nodes that a volume is attached to or being detached from, with the node id of the attach.

        The id is empty if the attacher has not written it.
        """
        found: dict[str, str] = {}
        for pv in self._volumes.of((driver, volume)):
            for ref in self._attachments.of((driver, pv.name)):
                if (body := self._source.body(ref)) is not None:
                    found[volumeattachments.node_of(body)] = annotation(body, _ID_AT_ATTACH)
        return found

    def node_id(self, driver: str, node: str) -> str:
        """By the annotation of the Node; empty if that does not tell."""
        ids = read_ids(annotation(self._source.body(Ref("Node", "", node)) or {}, NODE_IDS))
        return (ids or {}).get(driver, "")

    def nodes(self) -> Iterator[str]:
        return (ref.name for ref in list(self._source.refs("Node")))

    def kubelet_state(self, node: str) -> NodeState | None:
        """The state of a node's Node if a kubelet serves the node; None if its agent does, or if that is not known.

        In a cluster, the agent of a node without a kubelet tells facts. A node that has neither facts nor a Node may
        have a kubelet whose Node somebody deleted: then its state is that of a Node that is not Ready.
        """
        if not self._source.is_cluster or self._fact(node) is not None:
            return None
        if annotation(self._source.body(Ref("Node", "", node)) or {}, MADE_BY) == HUB:
            return None
        return self._source.node_state(node) or _NO_NODE

    def in_use(self, node: str) -> frozenset[str] | None:
        """The volumes that a node uses, by the names of `volumesInUse` (`name_in_use`); None if that is not known."""
        if (fact := self._fact(node)) is not None:
            return frozenset((fact.body.get("status") or {}).get("volumesInUse") or ())
        state = self.kubelet_state(node)
        if state is None or not self.has_node(node) or self._source.nodes_trouble:
            return None
        return state.in_use

    def claim_of(self, in_use: str) -> str:
        """The claim NAMESPACE/NAME of a volume by its name in `volumesInUse`; empty if it is not known."""
        driver, _, handle = in_use.removeprefix(IN_USE_PREFIX).partition("^")
        claim = next(iter(self._claims_of(driver, handle)), None)
        return f"{claim['namespace']}/{claim['name']}" if claim else ""

    @property
    def tells_all(self) -> bool:
        """Whether every node tells the volumes that it uses, by itself or by its Node, so that silence says nothing."""
        return self._source.is_cluster

    def asks_for_fence(self, driver: str, volume: str) -> bool:
        """Whether there is a PersistentVolume of a volume, and each asks for `fence` (`offline_policy`)."""
        bodies = [body for pv in self._volumes.of((driver, volume)) if (body := self._source.body(pv)) is not None]
        return bool(bodies) and all(map(self._is_fence, bodies))

    def _is_fence(self, volume: Body) -> bool:
        storage_class = self._source.body(ref) if (ref := class_of(volume)) is not None else None
        return offline_policy.is_fence(volume["metadata"].get("annotations"), (storage_class or {}).get("parameters"))

    def told_fence(self, node: str) -> ToldFence | None:
        """The volumes that the agent of a node without a kubelet fences when its lease ends; None: it fences none."""
        fact = self._fact(node)
        return offline_policy.read(fact.body.get("status") or {}) if fact is not None else None

    def is_wanted(self, node: str, driver: str, volume: str) -> bool:
        """Whether a pod of a node that has not ended, and is not being deleted, mounts a volume."""
        return any(
            pods.node_of(pod) == node and not pod["metadata"].get("deletionTimestamp")
            for pod in self._pods_of(driver, volume)
        )

    def nodes_wanting(self, driver: str, volume: str) -> frozenset[str]:
        """The nodes with a pod that has not ended, and mounts a volume. It may be one that is being deleted."""
        return frozenset(pods.node_of(pod) for pod in self._pods_of(driver, volume)) - {""}

    def _claims_of(self, driver: str, handle: str) -> list[Body]:
        bodies = (self._source.body(pv) or {} for pv in self._volumes.of((driver, handle)))
        return [claim for body in bodies if (claim := present_claim(self._source, body))]

    def _pods_of(self, driver: str, volume: str) -> Iterator[Body]:
        for claim in self._claims_of(driver, volume):
            for ref in list(self._source.refs("Pod")):
                body = self._source.body(ref) if ref.namespace == claim["namespace"] else None
                if body is not None and claim["name"] in pods.claim_names(body) and not pods.has_ended(body):
                    yield body

    def is_out_of_service(self, node: str) -> bool:
        state = self._source.node_state(node)
        return state is not None and state.is_out_of_service

    async def settle_earlier(self, node: str) -> None:
        """Forget the volumes that earlier machines of a node had in use. Raises OSError."""
        if self._facts is not None:
            await self._facts.clear_earlier_use(node)

    def _fact(self, node: str) -> Fact | None:
        return self._facts.of(node).get(Ref("Node", "", node)) if self._facts is not None else None


def present_claim(source: Source, volume: Body) -> Body:
    """The claim that a PersistentVolume names; empty without one, or if there is another claim of this name by now."""
    named = part(volume, "spec", "claimRef")
    claim = source.body(Ref("PersistentVolumeClaim", named["namespace"], named["name"])) if named else None
    return named if claim is None or is_claimed_by(volume, claim) else {}


def no_mounts() -> Mounts:
    # For a hub without objects and facts: it knows only the links.
    source = Source()
    source.is_ready = True
    return Mounts(source, None)


def _volume(attachment: Mapping[str, Any]) -> Key | None:
    name = volumeattachments.volume_of(attachment)
    return (str(attachment["spec"]["attacher"]), name) if name else None
