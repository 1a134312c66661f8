"""The rules of one kind: how an object of it is checked, what of it is kept, and which others it pulls in."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from cloud.kinds.fields import Body, Fields
from common.objects import Ref

_METADATA: Final = (
    "name", "namespace", "uid", "labels", "annotations", "ownerReferences", "creationTimestamp", "deletionTimestamp",
    "deletionGracePeriodSeconds", "finalizers",
)  # fmt: skip

_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
"""The whole object once more, secrets included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KindRules:
    """What the hub knows of one kind.

    Attributes:
        check: raises FieldError if a field that somebody relies on is missing or wrong.
        trim: a new body with what an edge node needs of a checked one.
        needs: the objects that a node needs as well if it needs this one; of a trimmed body.
    """

    kind: str
    api_version: str
    namespaced: bool
    check: Callable[[Fields], None]
    trim: Callable[[Body], dict[str, Any]]
    needs: Callable[[Body], Iterable[Ref]] = lambda _body: ()


def check_metadata(fields: Fields, *, rules: KindRules) -> None:
    """What all kinds have in common.

    Raises:
        FieldError: the name, the namespace, the UID … cannot be used.
    """
    metadata = fields.part("metadata", required=True)
    if rules.kind == "CSIDriver":
        metadata.driver("name")
    else:
        metadata.name("name", required=True)
    namespace = metadata.label("namespace")
    if namespace and not rules.namespaced:
        metadata.refuse("namespace", f"must not be given: a {rules.kind} belongs to no namespace")
    metadata.uid("uid")
    metadata.text_map("labels")
    metadata.text_map("annotations")
    metadata.time("deletionTimestamp")
    metadata.texts("finalizers")
    for owner in metadata.parts("ownerReferences"):
        for name in ("kind", "name"):
            owner.text(name, required=True)
        owner.uid("uid")
        owner.flag("controller")


def trimmed(body: Body, *, rules: KindRules) -> dict[str, Any]:
    """A checked object without what no edge node needs; a new dictionary."""
    return {
        "apiVersion": rules.api_version,
        "kind": rules.kind,
        "metadata": _trimmed_metadata(body["metadata"]),
        **rules.trim(body),
    }


def pick(body: Body | None, *names: str) -> dict[str, Any]:
    """Some fields of a mapping, without those that are null."""
    return {name: body[name] for name in names if body.get(name) is not None} if body else {}


def quantities(body: Body, *names: str) -> dict[str, Any]:
    """A mapping in which the amounts under these names are texts, as the API server makes them."""
    texts = {
        name: {unit: str(amount) for unit, amount in body[name].items() if amount is not None}
        for name in names
        if name in body
    }
    return {**body, **texts}


def without_empty(fields: Mapping[str, Any]) -> dict[str, Any]:
    """A mapping without its empty mappings and lists."""
    return {name: value for name, value in fields.items() if value not in ({}, [])}


def _trimmed_metadata(metadata: Body) -> dict[str, Any]:
    kept = pick(metadata, *_METADATA)
    if _LAST_APPLIED in kept.get("annotations", {}):
        kept["annotations"] = {name: text for name, text in kept["annotations"].items() if name != _LAST_APPLIED}
    return without_empty(kept)
