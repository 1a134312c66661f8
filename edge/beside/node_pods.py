"""The pods of this node, as the hub tells them, resolved when a call of the kubelet's asks."""

from collections.abc import Iterator

from common.objects.objects import Ref
from common.status import Code
from edge.stores.object_store import ObjectStore
from edge.volume_errors import NotReady, VolumeRefused
from edge.volumes import PodVolume, VolumeKey
from edge.wanted.object_fields import labels_of
from edge.wanted.opt_in import OptIn
from edge.wanted.resolution import NodeContext, PodWants, resolve
from edge.wanted.wanted import POD


class NodePods:
    """Finds the pods that may have a direct volume."""

    def __init__(self, objects: ObjectStore, node: str, opt_in: OptIn) -> None:
        self._objects = objects
        self._node = Ref("Node", "", node)
        self._opt_in = opt_in

    def find(self, key: VolumeKey, uid: str = "") -> PodVolume:
        """Return a volume as the pod of this uid may have it, or, without a uid, any pod.

        Raises VolumeRefused if it may not, and NotReady if no such pod is known yet.
        """
        refusals: list[str] = []
        others: list[str] = []
        try:
            for wants in self._wants(uid):
                for want in wants.volumes:
                    if want.volume.key == key and want.deferral is not None:
                        return want
                refusals += [wants.unresolved[name] for name, refused in wants.refused.items() if refused == key]
                others += [why for name, why in wants.unresolved.items() if uid and name not in wants.refused]
        except OSError as error:
            raise NotReady(str(error)) from error
        if refusals:
            raise VolumeRefused("; ".join(dict.fromkeys(refusals)), code=Code.FAILED_PRECONDITION)
        why = (
            "; ".join(others) or f"the hub {'' if self._objects.in_step else 'is away, and '}has not told of such a pod"
        )
        raise NotReady(f"no pod that may have direct volume {key} is known to this node yet: {why}")

    def asks(self, key: VolumeKey, uid: str) -> bool:
        """Whether a pod that is known asks for the volume to be direct."""
        try:
            self.find(key, uid)
        except NotReady:
            return False
        except VolumeRefused:
            return True
        return True

    def _wants(self, uid: str) -> Iterator[PodWants]:
        context = NodeContext(
            find_object=self._objects.get,
            node=self._node.name,
            labels=labels_of(self._objects.get(self._node)),
            selinux=False,  # a block volume has no label
            opt_in=self._opt_in,
        )
        for ref in self._objects.refs(POD):
            if uid in {"", self._objects.uid(ref)} and (found := self._objects.get(ref)) is not None:
                wants = resolve(found, context, now=0.0, deleted_at=None)
                if wants is not None:
                    yield wants
