"""The affinity: the nodes that the PersistentVolumes of a handle allow, by their nodeAffinity."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from cloud.kinds.persistentvolumes import handle_of
from cloud.kinds.rules.fields import part
from cloud.nodes.fleet import Fleet, Member
from cloud.nodes.unique_segments import HOSTNAME
from cloud.sources.index import Index
from cloud.sources.source import Source
from common.objects.node_selector import choices, selects
from common.objects.objects import Ref

_Terms = Sequence[Mapping[str, Any]]  # NodeSelectorTerms


@dataclass(frozen=True, slots=True)
class Fit:
    """The nodes of a fleet that a volume is for, in the order of their names."""

    named: list[str]  # nodes that a PersistentVolume selects. One without nodeAffinity selects none.
    possible: list[str]  # nodes that no PersistentVolume rules out


class Affinity:
    """The PersistentVolumes of a source, by driver and handle."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._volumes = Index(source, "PersistentVolume", handle_of)

    @property
    def is_ready(self) -> bool:
        """Whether the hub has read every PersistentVolume. Until then a missing one proves nothing."""
        return self._source.is_ready

    def names(self, driver: str, handle: str) -> bool:
        """Whether a PersistentVolume has this handle."""
        return bool(self._volumes.of((driver, handle)))

    def fit(self, handle: str, driver: str, fleet: Fleet) -> Fit:
        """The nodes of the fleet that PersistentVolumes of a handle are for.

        A node may have labels that the hub does not know, so a required label that is unknown rules no node out. But a
        label that the fleet's reports use is known: a node whose report is complete and lacks it does not have it.
        """
        required = list(self._required(handle, driver))
        bound = [terms for terms in required if terms]
        if not bound:
            return Fit([], list(fleet.members))
        keys = _keys(bound)
        fit = Fit([], [])
        for member in _candidates(bound, fleet):
            labels = self._labels(member, keys)
            if any(selects(terms, labels, member.node) for terms in bound):
                fit.named.append(member.node)
                fit.possible.append(member.node)
            elif not keys <= labels.keys() and _may_select(bound, labels, member, fleet):
                fit.possible.append(member.node)
        return fit if len(bound) == len(required) else Fit(fit.named, list(fleet.members))

    def allows(self, handle: str, driver: str, member: Member, fleet: Fleet) -> bool:
        """Whether no PersistentVolume of a handle rules a node out."""
        required = list(self._required(handle, driver))
        if not required or not all(required):
            return True
        return _may_select(required, self._labels(member, _keys(required)), member, fleet)

    def unknown_labels(self, handle: str, driver: str, fleet: Fleet, nodes: Iterable[str]) -> dict[str, list[str]]:
        """By node: the keys of required labels of which the hub does not know whether the node has them."""
        keys = _keys(self._required(handle, driver))
        found = {}
        for member in map(fleet.members.__getitem__, nodes):
            labels = self._labels(member, keys)
            if unknown := sorted(key for key in keys if not _is_known(key, labels, member, fleet)):
                found[member.node] = unknown
        return found

    def _labels(self, member: Member, keys: AbstractSet[str]) -> Mapping[str, str]:
        if keys <= member.labels.keys():
            return member.labels
        node = self._source.body(Ref("Node", "", member.node))
        # Without a Node, the name counts as the hostname. A kubelet can have another hostname.
        labels = {HOSTNAME: member.node} if node is None else node["metadata"].get("labels") or {}
        return {**{key: labels[key] for key in keys if key in labels}, **member.labels}

    def _required(self, handle: str, driver: str) -> Iterator[_Terms]:
        for ref in self._volumes.of((driver, handle)):
            required = part(self._source.body(ref) or {}, "spec", "nodeAffinity", "required")
            yield required.get("nodeSelectorTerms") or ()


def _candidates(bound: Iterable[_Terms], fleet: Fleet) -> Iterable[Member]:
    # A label of one node's disk leaves one member to look at.
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
    return key in labels or (member.tells_segments and key in fleet.label_keys)


def _keys(required: Iterable[_Terms]) -> AbstractSet[str]:
    return {each["key"] for terms in required for term in terms for each in term.get("matchExpressions") or ()}
