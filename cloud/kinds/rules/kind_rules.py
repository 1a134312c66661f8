"""The rules of one kind: the check of an object, the fields to keep, and the other objects that it needs."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from cloud.kinds.rules.fields import Body, Fields
from common.objects.objects import Ref

_METADATA: Final = (
    "name", "namespace", "uid", "labels", "annotations", "ownerReferences", "creationTimestamp", "deletionTimestamp",
    "deletionGracePeriodSeconds", "finalizers",
)  # fmt: skip

_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"  # it repeats the object, secrets included


@dataclass(frozen=True, slots=True, kw_only=True)
class KindRules:
    """The rules of one kind."""

    kind: str
    api_version: str
    namespaced: bool  # whether its objects belong to a namespace
    check: Callable[[Fields], None]  # raises FieldError if a used field is missing or wrong
    # Returns a new body with the parts of a checked body that an edge node needs
    trim: Callable[[Body], dict[str, Any]]
    # Returns the other objects that a node needs for an object, from its trimmed body
    needs: Callable[[Body], Iterable[Ref]] = lambda _body: ()


def check_metadata(fields: Fields, *, rules: KindRules) -> None:
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
    metadata = pick(body["metadata"], *_METADATA)
    if _LAST_APPLIED in metadata.get("annotations", {}):
        kept = {name: text for name, text in metadata["annotations"].items() if name != _LAST_APPLIED}
        metadata["annotations"] = kept
    named = {"apiVersion": rules.api_version, "kind": rules.kind, "metadata": without_empty(metadata)}
    return {**named, **rules.trim(body)}


def pick(body: Body | None, *names: str) -> dict[str, Any]:
    """Some fields of a mapping, without those that are null."""
    return {name: body[name] for name in names if body.get(name) is not None} if body else {}


def quantities(body: Body, *names: str) -> dict[str, Any]:
    """A copy of a mapping in which the amounts under these names are texts, as from the API server."""
    texts = {
        name: {unit: str(amount) for unit, amount in body[name].items() if amount is not None}
        for name in names
        if name in body
    }
    return {**body, **texts}


def without_empty(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value not in ({}, [])}
