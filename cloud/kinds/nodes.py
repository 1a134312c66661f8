"""Nodes, which the hub sends to the node itself: the labels that bind volumes, and the attached volumes.

The rest of a Node's status changes every few minutes and does not concern volumes. The hub checks at each change
whether the Node is Ready, and does not keep that.
"""

from typing import Any, Final

from cloud.kinds.fields import Body, Fields
from cloud.kinds.kind_rules import KindRules, pick, without_empty


def _check(fields: Fields) -> None:
    status = fields.part("status")
    for volume in status.parts("volumesAttached"):
        volume.text("name", required=True)


def _trim(body: Body) -> dict[str, Any]:
    return without_empty({"status": pick(body.get("status"), "volumesAttached")})


def is_ready(fields: Fields) -> bool:
    """Whether an untrimmed Node has the condition Ready.

    Raises:
        FieldError: its conditions do not have the right form.
    """
    conditions = fields.part("status").parts("conditions")
    return any(it.text("type") == "Ready" and it.text("status") == "True" for it in conditions)


RULES: Final = KindRules(kind="Node", api_version="v1", namespaced=False, check=_check, trim=_trim)
