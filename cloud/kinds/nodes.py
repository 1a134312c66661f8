"""Nodes, as the hub tells each its own: the labels that volumes are bound to, and what is attached.

A node's status otherwise changes every few minutes, and none of it is about volumes. Whether it is Ready is
for the hub alone, which hears it whenever it is told of a Node, and does not keep it.
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
    """Whether a Node, untrimmed, has the condition Ready.

    Raises:
        FieldError: its conditions have another form.
    """
    conditions = fields.part("status").parts("conditions")
    return any(it.text("type") == "Ready" and it.text("status") == "True" for it in conditions)


RULES: Final = KindRules(kind="Node", api_version="v1", namespaced=False, check=_check, trim=_trim)
