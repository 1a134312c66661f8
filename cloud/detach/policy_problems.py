"""The problems with offline policies: wrong values, and fences that do not count (`common.objects.offline_policy`)."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from cloud.detach.mounts import Mounts
from cloud.kinds.persistentvolumes import class_of
from cloud.sources.source import Source
from cloud.sync.fact_kinds import name_in_use
from cloud.sync.fact_table import FactTable
from common.objects import offline_policy
from common.objects.objects import Ref
from common.objects.offline_policy import ANNOTATION, FENCE
from common.wording import first_names

_MOST_SHOWN: Final = 5


class PolicyProblems:
    """Looks for problems with the policies of all volumes."""

    def __init__(self, source: Source, mounts: Mounts, facts: FactTable) -> None:
        self._source = source
        self._mounts = mounts
        self._facts = facts

    def problems(self) -> Iterator[str]:
        for ref in sorted(self._source.refs("StorageClass")):
            if flaw := offline_policy.flaw(None, self._parameters(ref)):
                yield f"StorageClass {ref.name}: {flaw}"
        kept: defaultdict[str, list[str]] = defaultdict(list)
        for ref in sorted(self._source.refs("PersistentVolume")):
            body = self._source.body(ref)
            if body is None or not (csi := body["spec"].get("csi")):
                continue
            annotations = body["metadata"].get("annotations")
            if ANNOTATION in (annotations or {}) and (flaw := offline_policy.flaw(annotations)):
                yield f"PersistentVolume {ref.name}: {flaw}"
            elif offline_policy.is_fence(annotations, self._parameters(class_of(body))):
                for node in self._keepers(csi["driver"], csi["volumeHandle"]):
                    kept[node].append(ref.name)
        for node, volumes in sorted(kept.items()):
            yield (
                f"node {node} keeps volumes with {ANNOTATION}: {FENCE} ({first_names(volumes, _MOST_SHOWN)}), "
                f"because {self._why(node)}"
            )

    def _keepers(self, driver: str, handle: str) -> Iterator[str]:
        name = name_in_use(driver, handle)
        for node in {*self._facts.nodes_using(name), *self._mounts.attached(driver, handle)}:
            told = self._mounts.told_fence(node)
            is_used = name in (self._mounts.in_use(node) or ())
            if is_used and (told is None or name not in told.staged | told.staging):
                yield node

    def _why(self, node: str) -> str:
        if self._mounts.kubelet_state(node) is not None:
            return "it has a kubelet, and only the agents of nodes without one fence"
        return "its agent has not told that it fences them; an Event NotFenced of each claim has the reason"

    def _parameters(self, ref: Ref | None) -> dict[str, str] | None:
        body = self._source.body(ref) if ref is not None else None
        return body.get("parameters") if body is not None else None
