"""The affinity: on which nodes the PersistentVolumes of a handle may be used, as their nodeAffinity says."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final

from cloud.placement.decisions import Fit
from cloud.placement.fleet import Fleet, Member
from cloud.sources.source import Source
from common.node_selector import choices, selects
from common.objects import Ref

HOSTNAME: Final = "kubernetes.io/hostname"
"""The label that static volumes on a node's own disk are bound by."""

_KIND: Final = "PersistentVolume"

_Terms = Sequence[Mapping[str, Any]]
"""NodeSelectorTerms."""


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

    def fit(self, handle: str, driver: str, fleet: Fleet) -> Fit:
        """The nodes of the fleet that PersistentVolumes of a handle are for.

        A label that a node has not may be there all the same, unless it is one that nodes of the fleet tell of
        themselves, and this one has told its own.
        """
        required = list(self._required(handle, driver))
        bound = [terms for terms in required if terms]
        if not bound:
            return Fit([], list(fleet.members))
        keys, fit = _keys(bound), Fit([], [])
        for member in _candidates(bound, fleet):
            labels = self._labels(member, keys)
            if any(selects(terms, labels, member.node) for terms in bound):
                fit.named.append(member.node)
                fit.possible.append(member.node)
            elif not keys <= labels.keys() and _may_select(bound, labels, member, fleet):
                fit.possible.append(member.node)
        return fit if len(bound) == len(required) else Fit(fit.named, list(fleet.members))

    def allows(self, handle: str, driver: str, member: Member, fleet: Fleet) -> bool:
        """Whether a node is one of those that no PersistentVolume of a handle rules out."""
        required = list(self._required(handle, driver))
        if not required or not all(required):
            return True
        return _may_select(required, self._labels(member, _keys(required)), member, fleet)

    def unknown_labels(self, handle: str, driver: str, fleet: Fleet, nodes: Iterable[str]) -> dict[str, list[str]]:
        """By node, where there are any: the keys of labels that are asked for, and that it may have or not."""
        keys, found = _keys(self._required(handle, driver)), {}
        for member in map(fleet.members.__getitem__, nodes):
            labels = self._labels(member, keys)
            if unknown := sorted(key for key in keys if not _is_known(key, labels, member, fleet)):
                found[member.node] = unknown
        return found

    def _labels(self, member: Member, keys: AbstractSet[str]) -> Mapping[str, str]:
        """The labels of these keys that a node has, or will have once what its vendor tells of it is written.

        Where there is no Node to look at, a node's name is taken for its hostname: it need not be that with a kubelet.
        """
        if keys <= member.labels.keys():
            return member.labels
        node = self._source.body(Ref("Node", "", member.node))
        labels = {HOSTNAME: member.node} if node is None else node["metadata"].get("labels") or {}
        return {**{key: labels[key] for key in keys if key in labels}, **member.labels}

    def _required(self, handle: str, driver: str) -> Iterator[_Terms]:
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


def _candidates(bound: Iterable[_Terms], fleet: Fleet) -> Iterable[Member]:
    """The members that may be selected. A volume on one node's disk says so by a label: no other node is looked at."""
    found: dict[str, Member] = {}
    for term in (term for terms in bound for term in terms):
        narrowed = [fleet.with_label(key, values) for key, values in choices(term)]
        found.update((member.node, member) for member in min(narrowed, key=len, default=fleet))
    return [found[node] for node in sorted(found)]


def _may_select(required: Iterable[_Terms], labels: Mapping[str, str], member: Member, fleet: Fleet) -> bool:
    def is_known(key: str) -> bool:
        return _is_known(key, labels, member, fleet)

    return any(selects(terms, labels, member.node, is_known=is_known) for terms in required)


def _is_known(key: str, labels: Mapping[str, str], member: Member, fleet: Fleet) -> bool:
    """Whether it is known if a node has a label of a key."""
    return key in labels or (member.tells_segments and key in fleet.label_keys)


def _keys(required: Iterable[_Terms]) -> AbstractSet[str]:
    """The keys of the labels that are asked for."""
    return {each["key"] for terms in required for term in terms for each in term.get("matchExpressions") or ()}
