"""VolumeAttachments, which the hub sends to the node that they name."""

from typing import Any, Final

from cloud.kinds.rules.fields import Body, Fields
from cloud.kinds.rules.kind_rules import KindRules, pick, without_empty


def node_of(body: Body) -> str:
    return str(body["spec"]["nodeName"])


def volume_of(body: Body) -> str:
    """The PersistentVolume's name; empty for an inline volume."""
    return str(body["spec"]["source"].get("persistentVolumeName") or "")


def _check(fields: Fields) -> None:
    spec = fields.part("spec", required=True)
    spec.driver("attacher")
    spec.name("nodeName", required=True)
    spec.part("source", required=True).name("persistentVolumeName")
    status = fields.part("status")
    status.flag("attached")
    status.text_map("attachmentMetadata")
    for name in ("attachError", "detachError"):
        status.part(name).text("message")


def _trim(body: Body) -> dict[str, Any]:
    spec = pick(body["spec"], "attacher", "nodeName")
    spec["source"] = pick(body["spec"]["source"], "persistentVolumeName")
    status = pick(body.get("status"), "attached", "attachmentMetadata", "attachError", "detachError")
    return without_empty({"spec": spec, "status": status})


RULES: Final = KindRules(
    kind="VolumeAttachment", api_version="storage.k8s.io/v1", namespaced=False, check=_check, trim=_trim
)
