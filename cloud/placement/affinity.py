"""The affinity: on which nodes the PersistentVolumes of a handle may be used, as their nodeAffinity says."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from cloud.placement.fleet import Fleet, Member
from cloud.sync.source import Source
from common.objects import Ref

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

    def nodes(self, handle: str, driver: str, fleet: Fleet) -> list[str] | None:
        """The nodes of the fleet on which a volume may be used.

        None: there is no PersistentVolume of it, or one that may be used anywhere.
        """
        required = [terms for terms in self._required(handle, driver) if terms]
        return [member.node for member in fleet if any(_allow(terms, member) for terms in required)] or None

    def allows(self, handle: str, driver: str, member: Member) -> bool:
        """Whether nothing says that a volume may not be used on a node."""
        required = list(self._required(handle, driver))
        return not required or any(not terms or _allow(terms, member) for terms in required)

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


def _allow(terms: Sequence[Mapping[str, Any]], member: Member) -> bool:
    return any(_fits(term, member.labels, member.node) for term in terms)


def _fits(term: Mapping[str, Any], labels: Mapping[str, str], node: str) -> bool:
    """Whether a node fits a NodeSelectorTerm, by what is known of its labels. An empty term fits none (Kubernetes)."""
    expressions = [(each, labels) for each in term.get("matchExpressions") or ()]
    expressions += [(each, {"metadata.name": node}) for each in term.get("matchFields") or ()]
    return bool(expressions) and all(_holds(expression, known) for expression, known in expressions)


def _holds(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    value, values = labels.get(expression["key"]), expression.get("values") or ()
    match expression["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case _:
            return False  # Gt and Lt: no storage driver says where a volume is by them
