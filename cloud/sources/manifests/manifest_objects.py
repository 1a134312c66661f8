"""The objects of one manifest file: checked, trimmed and stamped.

The error of a broken file is a sentence with the file, the line and the object, and without values:
`pods.yaml:17: Pod default/web: spec.nodeName is missing`.
"""

import hashlib
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from cloud.kinds.rules.fields import Body, FieldError, Fields, Path
from cloud.kinds.rules.kind_rules import check_metadata, trimmed
from cloud.kinds.table import KINDS
from cloud.sources.manifests.documents import Document, DocumentError, read_yaml
from cloud.sources.source import Item
from common.objects.objects import Ref, Stamp, encode_body

# A change would give every object without a UID of its own another UID.
_UID_NAMESPACE: Final = uuid.UUID("5d0d60f4-51dd-4ba9-9a36-6a3f2f7f6c4e")

_DEFAULT_NAMESPACE: Final = "default"

_SHOWN_CHARS: Final = 100

# Kinds that are common in manifests and that no node needs. Any other kind is a mistake.
NOT_NEEDED: Final = frozenset({
    "ClusterRole", "ClusterRoleBinding", "ConfigMap", "CronJob", "CSINode", "CSIStorageCapacity",
    "CustomResourceDefinition", "DaemonSet", "Deployment", "Event", "Ingress", "Job", "Namespace", "NetworkPolicy",
    "PodDisruptionBudget", "PodTemplate", "PriorityClass", "ReplicaSet", "Role", "RoleBinding", "RuntimeClass",
    "Service", "ServiceAccount", "StatefulSet", "VolumeAttributesClass", "VolumeSnapshot",
    "VolumeSnapshotClass", "VolumeSnapshotContent",
})  # fmt: skip


class BrokenFile(ValueError):
    """The file cannot be used; `str()` names the place."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An object of a file; `place` is its file and line."""

    ref: Ref
    item: Item
    place: str


def read_objects(name: str, data: bytes) -> list[Entry]:
    """The objects of a file in their order, repetitions included. Raises BrokenFile if one, or the file, is wrong."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise BrokenFile(f"{name}:{line}: it is not UTF-8") from None
    try:
        documents = read_yaml(text)
    except DocumentError as error:
        raise BrokenFile(f"{name}:{error.line}: {error.why}") from None
    return [entry for document in documents for entry in _entries(name, document)]


def item_of(body: Body) -> Item:
    """An object with its stamp: its UID, and a hash of the body as its version. Raises ValueError."""
    return Item(Stamp(body["metadata"]["uid"], hashlib.sha256(encode_body(body)).hexdigest()[:16]), body)


def made_up_uid(ref: Ref) -> str:
    """The UID for an object without one: the same after a restart."""
    return str(uuid.uuid5(_UID_NAMESPACE, f"{ref.kind}/{ref.namespace}/{ref.name}"))


def _entries(name: str, document: Document) -> Iterator[Entry]:
    found: list[tuple[Any, Path]] = [(document.value, ())]
    if (
        isinstance(whole := document.value, dict)
        and whole.get("kind") == "List"
        and isinstance(whole.get("items"), list)
    ):
        found = [(item, ("items", number)) for number, item in enumerate(whole["items"])]  # as in kubectl get -o yaml
    for value, path in found:
        place = f"{name}:{document.place.find(path).line}"
        try:
            entry = _entry(value, place)
        except FieldError as error:
            line = document.place.find((*path, *error.path)).line
            raise BrokenFile(f"{name}:{line}: {_title(value)}: {error}") from None
        if entry is not None:
            yield entry


def _entry(value: Any, place: str) -> Entry | None:
    if not isinstance(value, dict):
        raise FieldError((), "it is not a Kubernetes object")
    fields = Fields(value)
    kind = fields.text("kind", required=True)
    if kind in NOT_NEEDED:
        return None
    rules = KINDS.get(kind)
    if rules is None:
        fields.refuse("kind", f"is not one of the kinds that are read here ({', '.join(KINDS)})")
    fields.text("apiVersion", required=True, allowed=(rules.api_version,))
    check_metadata(fields, rules=rules)
    rules.check(fields)
    body = trimmed(value, rules=rules)
    metadata = body["metadata"]
    if rules.namespaced:
        metadata["namespace"] = metadata.get("namespace") or _DEFAULT_NAMESPACE
    else:
        metadata.pop("namespace", None)
    ref = Ref(kind, metadata.get("namespace", ""), metadata["name"])
    metadata["uid"] = metadata.get("uid") or made_up_uid(ref)
    return Entry(ref, item_of(body), place)


def _title(value: Any) -> str:
    # Every part of the object may be wrong.
    if not isinstance(value, dict):
        return "a document"
    metadata = value.get("metadata")
    names = (metadata.get("namespace"), metadata.get("name")) if isinstance(metadata, dict) else (None, None)
    kind = value.get("kind") if isinstance(value.get("kind"), str) else "an object"
    rules = KINDS.get(str(kind))
    parts = [names[0] or _DEFAULT_NAMESPACE, names[1]] if rules is not None and rules.namespaced else [names[1]]
    name = "/".join(str(part) for part in parts) if isinstance(names[1], str) else "without a name"
    return f"{kind} {name}"[:_SHOWN_CHARS]
