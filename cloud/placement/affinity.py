"""The affinity: on which nodes the PersistentVolumes of a handle may be used, as their nodeAffinity says."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from cloud.placement.fleet import Fleet, Member
from cloud.sync.source import Source
from common.node_selector import selects
from common.objects import Ref

HOSTNAME: Final = "kubernetes.io/hostname"
"""The label that static volumes on a node's own disk are bound by."""

_KIND: Final = "PersistentVolume"


class Affinity:
    """The PersistentVolumes of a source, by driver and handle."""

    def __init__(self, source: Source) -> None:
        """Follows the source from now on."""
        self._source = source
        self._by_handle: dict[tuple[str, str], set[Ref]] = {}
        self._handles: dict[Ref, tuple[str, str]] = {}
        self._changed(frozenset(source.refs(_KIND)))
        source.subscribe(self._changed)

    @property
    def is_ready(self) -> bool:
        """Whether every PersistentVolume is known: before that, that there is none says nothing."""
        return self._source.is_ready

    def nodes(self, handle: str, driver: str, fleet: Fleet) -> list[str]:
        """The nodes of the fleet that PersistentVolumes of a handle name. One that may be used anywhere names none."""
        required = [terms for terms in self._required(handle, driver) if terms]
        return [each.node for each in fleet if any(selects(it, self._labels(each), each.node) for it in required)]

    def possible(self, handle: str, driver: str, fleet: Fleet) -> list[str]:
        """The nodes of the fleet that no PersistentVolume of a handle rules out.

        A label that no node of the fleet has, or that a vendor has yet to tell of its node, may be there all the same.
        """
        required = list(self._required(handle, driver))
        return [each.node for each in fleet if self._may_fit(required, each, fleet)]

    def allows(self, handle: str, driver: str, member: Member, fleet: Fleet) -> bool:
        """Whether a node is one of those."""
        return self._may_fit(list(self._required(handle, driver)), member, fleet)

    def _may_fit(self, required: Sequence[Sequence[Mapping[str, Any]]], member: Member, fleet: Fleet) -> bool:
        if not required:
            return True
        labels = self._labels(member)

        def is_known(key: str) -> bool:
            return key in labels or (member.tells_segments and key in fleet.label_keys)

        return any(not terms or selects(terms, labels, member.node, is_known=is_known) for terms in required)

    def _labels(self, member: Member) -> Mapping[str, str]:
        """The labels that a node has, or will have once what its vendor tells of it is written.

        Where there is no Node to look at, a node's name is taken for its hostname: it need not be that with a kubelet.
        """
        node = self._source.body(Ref("Node", "", member.node))
        labels = {HOSTNAME: member.node} if node is None else node["metadata"].get("labels") or {}
        return {**labels, **member.labels}

    def _required(self, handle: str, driver: str) -> Iterator[Sequence[Mapping[str, Any]]]:
        """Of each PersistentVolume its NodeSelectorTerms; none if it may be used anywhere."""
        for ref in self._by_handle.get((driver, handle), ()):
            spec = (self._source.body(ref) or {}).get("spec", {})
            yield ((spec.get("nodeAffinity") or {}).get("required") or {}).get("nodeSelectorTerms") or ()

    def _changed(self, refs: frozenset[Ref]) -> None:
        for ref in refs:
            if ref.kind == _KIND:
                self._put(ref)

    def _put(self, ref: Ref) -> None:
        old, csi = self._handles.pop(ref, None), ((self._source.body(ref) or {}).get("spec") or {}).get("csi")
        if old is not None:
            self._by_handle[old].discard(ref)
            if not self._by_handle[old]:
                del self._by_handle[old]
        if csi:
            key = self._handles[ref] = (csi["driver"], csi["volumeHandle"])
            self._by_handle.setdefault(key, set()).add(ref)
