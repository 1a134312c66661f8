"""The volumes that the pods bound to this node want, kept up to date with the objects in the store.

Rules:

* Object bodies are not kept. When an object changes, it is read again, and the pods that refer to it are resolved
  again.
* A pod is gone if it has ended, if it was deleted and its grace period is over, or if the store has no pod of its uid.
  Only then does it stop wanting its volumes. A claim that vanished, or an affinity that no longer fits, unmounts
  nothing.
* A pod that cannot be read from the disk still exists. It keeps its last known volumes, or is known by its uid alone,
  until `read_again` succeeds. It does not hold up other pods.
* All times are those of the monotonic clock.
"""

import contextlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

from common.objects.objects import Ref
from edge.stores.object_store import ObjectStore
from edge.volumes import Pod
from edge.wanted.object_fields import labels_of
from edge.wanted.opt_in import OptIn
from edge.wanted.resolution import NodeContext, PodWants, resolve, without_body

POD = "Pod"


class Wanted:
    """The volumes that every pod of a node wants."""

    def __init__(
        self,
        objects: ObjectStore,
        *,
        node: str,
        own_labels: Callable[[], Mapping[str, str]],
        selinux: bool,
        opt_in: OptIn,
        complain: Callable[[str], None],
    ) -> None:
        """`own_labels` returns the drivers' topology, which the Node object may not have yet."""
        self._objects = objects
        self._own_labels = own_labels
        self._complain = complain
        self._context = NodeContext(find_object=objects.get, node=node, selinux=selinux, opt_in=opt_in)
        self._node_ref = Ref("Node", "", node)
        self._node_labels: dict[str, str] = {}
        self._pods: dict[Ref, PodWants] = {}
        # By uid. A copied manifest has another pod's: the newest, which is the last, gets its volumes.
        self._by_uid: defaultdict[str, dict[Ref, None]] = defaultdict(dict)

    @property
    def pods(self) -> Iterable[PodWants]:
        """The volumes of each pod, including pods that are gone."""
        return self._pods.values()

    @property
    def labels(self) -> dict[str, str]:
        return dict(self._node_labels)

    def of(self, uid: str) -> PodWants | None:
        refs = self._by_uid.get(uid)
        return self._pods[next(reversed(refs))] if refs else None

    def is_gone(self, uid: str) -> bool:
        wants = self.of(uid)
        return wants is None or wants.pod.gone

    def load(self, now: float) -> frozenset[str]:
        self._context.labels = self._read_labels()
        return self._resolve(self._objects.refs(POD), now)

    def update(self, changed: Collection[Ref], now: float) -> frozenset[str]:
        concerned = {ref for ref in changed if ref.kind == POD}
        concerned |= {ref for ref, wants in self._pods.items() if not wants.refs.isdisjoint(changed)}
        if self._node_ref in changed:
            concerned |= self._relabelled()
        return self._resolve(concerned, now)

    def update_labels(self, now: float) -> frozenset[str]:
        return self._resolve(self._relabelled(), now)

    def expire(self, now: float) -> frozenset[str]:
        over = [ref for ref, wants in self._pods.items() if wants.ends_at is not None and wants.ends_at <= now]
        return self._resolve(over, now)

    def next_end(self) -> float | None:
        return min((wants.ends_at for wants in self.pods if wants.ends_at is not None), default=None)

    @property
    def has_unread(self) -> bool:
        return any(wants.unread for wants in self.pods)

    def read_again(self, now: float) -> frozenset[str]:
        return self._resolve([ref for ref, wants in self._pods.items() if wants.unread], now)

    def _relabelled(self) -> set[Ref]:
        labels = self._read_labels()
        if labels == self._context.labels:
            return set()
        self._context.labels = labels
        return set(self._pods)

    def _read_labels(self) -> dict[str, str]:
        with contextlib.suppress(OSError):
            self._node_labels = labels_of(self._objects.get(self._node_ref))
        return {**self._own_labels(), **self._node_labels}

    def _resolve(self, refs: Iterable[Ref], now: float) -> frozenset[str]:
        changed: set[str] = set()
        for ref in refs:
            old = self._pods.get(ref)
            new = self._resolve_one(ref, old, now)
            if old == new:
                continue
            if old is not None:
                self._forget(ref, old)
                changed.add(old.pod.uid)
            if new is not None:
                self._remember(ref, new)
                changed.add(new.pod.uid)
        return frozenset(changed)

    def _resolve_one(self, ref: Ref, old: PodWants | None, now: float) -> PodWants | None:
        try:
            found = self._objects.get(ref)
        except OSError as error:
            return self._unread(ref, old, str(error))
        if found is None:
            return None
        deleted_at = old.deleted_at if old is not None and old.pod.uid == found.stamp.uid else None
        return resolve(found, self._context, now=now, deleted_at=deleted_at)

    def _unread(self, ref: Ref, old: PodWants | None, why: str) -> PodWants:
        if old is None or not old.unread:
            self._complain(f"{ref} cannot be read, and its earlier state counts: {why}")
        if old is not None:
            return replace(old, unread=True)
        pod = Pod(uid=self._objects.uid(ref), namespace=ref.namespace, name=ref.name)
        return without_body(pod, why, unread=True)

    def _remember(self, ref: Ref, wants: PodWants) -> None:
        self._pods[ref] = wants
        for other in self._by_uid[wants.pod.uid]:
            self._complain(f"{other} and {ref} have the same uid, {wants.pod.uid}: only the latter gets its volumes")
        self._by_uid[wants.pod.uid][ref] = None

    def _forget(self, ref: Ref, wants: PodWants) -> None:
        del self._pods[ref]
        del self._by_uid[wants.pod.uid][ref]
        if not self._by_uid[wants.pod.uid]:
            del self._by_uid[wants.pod.uid]
