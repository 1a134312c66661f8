"""A node selector: the terms of a PersistentVolume's nodeAffinity, which select the nodes that may use it.

Rules (component-helpers, scheduling/corev1/nodeaffinity):

* One matching term is enough. All of a term's requirements have to hold; a term without requirements matches no node.
* `matchFields` knows one field, `metadata.name`.
* `Gt` and `Lt` compare whole numbers; any other label fulfils neither.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

OPERATORS: Final = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")

_NAME: Final = "metadata.name"


def selects(
    terms: Iterable[Mapping[str, Any]],
    labels: Mapping[str, str],
    node: str,
    *,
    is_known: Callable[[str], bool] = lambda _: True,
) -> bool:
    """Whether the NodeSelectorTerms select a node with these labels. Raises ValueError for an unknown operator.

    A requirement on a label whose key is not known (`is_known`) counts as fulfilled.
    """
    return any(_matches(term, labels, node, is_known) for term in terms)


def choices(term: Mapping[str, Any]) -> Iterator[tuple[str, Sequence[str]]]:
    """The keys and values of a term's `In` requirements. Nodes with other values of these labels are not selected."""
    for each in term.get("matchExpressions") or ():
        if each["operator"] == "In":
            yield each["key"], each.get("values") or ()


def _matches(term: Mapping[str, Any], labels: Mapping[str, str], node: str, is_known: Callable[[str], bool]) -> bool:
    expressions = term.get("matchExpressions") or ()
    fields = term.get("matchFields") or ()
    return (
        bool(expressions or fields)
        and all(holds(each, labels.get(each["key"])) or not is_known(each["key"]) for each in expressions)
        and all(each["key"] == _NAME and holds(each, node) for each in fields)
    )


def holds(requirement: Mapping[str, Any], value: str | None) -> bool:
    """Whether a label's value, None if there is none, fulfils a requirement. Raises ValueError as `selects`."""
    operator = requirement["operator"]
    values: Sequence[str] = requirement.get("values") or ()
    match operator:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            try:
                have = int(value or "")
                limit = int(values[0])
            except (IndexError, ValueError):
                return False
            return have > limit if operator == "Gt" else have < limit
    raise ValueError(f"the node selector operator {operator!r} is unknown")
