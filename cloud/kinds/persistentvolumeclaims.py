"""PersistentVolumeClaims, which the hub sends to the nodes whose pods use them."""

from collections.abc import Iterable
from typing import Any, Final

from cloud.kinds.persistentvolumes import ACCESS_MODES, VOLUME_MODES
from cloud.kinds.rules.fields import Body, Fields
from cloud.kinds.rules.kind_rules import KindRules, pick, quantities, without_empty
from common.objects.objects import Ref

_SPEC: Final = (
    "accessModes", "resources", "selector", "storageClassName", "volumeAttributesClassName", "volumeMode", "volumeName",
)  # fmt: skip
_STATUS: Final = (
    "phase", "accessModes", "capacity", "allocatedResources", "allocatedResourceStatuses", "conditions",
)  # fmt: skip
CONDITION: Final = ("type", "status", "reason", "message", "lastTransitionTime", "lastProbeTime")


def check_status(status: Fields) -> None:
    for name in ("capacity", "allocatedResources"):
        status.part(name).quantity("storage")
    status.part("allocatedResourceStatuses").text("storage")
    for condition in status.parts("conditions"):
        for name in CONDITION:
            condition.text(name, required=name in ("type", "status"))


def check_spec(spec: Fields) -> None:
    spec.texts("accessModes", allowed=ACCESS_MODES)
    spec.text("volumeMode", allowed=VOLUME_MODES)
    spec.name("volumeName")
    for name in ("storageClassName", "volumeAttributesClassName"):
        spec.text(name)
    selector = spec.part("selector")
    selector.text_map("matchLabels")
    for expression in selector.parts("matchExpressions"):
        expression.text("key", required=True)
        expression.text("operator", required=True, allowed=("In", "NotIn", "Exists", "DoesNotExist"))
        expression.texts("values")
    spec.part("resources").part("requests").quantity("storage")


def _check(fields: Fields) -> None:
    check_spec(fields.part("spec", required=True))
    status = fields.part("status")
    status.text("phase")
    check_status(status)


def _trim(body: Body) -> dict[str, Any]:
    status = quantities(pick(body.get("status"), *_STATUS), "capacity", "allocatedResources")
    return {"spec": pick(body["spec"], *_SPEC), **without_empty({"status": status})}


def _needs(body: Body) -> Iterable[Ref]:
    if volume := body["spec"].get("volumeName"):
        yield Ref("PersistentVolume", "", volume)


RULES: Final = KindRules(
    kind="PersistentVolumeClaim", api_version="v1", namespaced=True, check=_check, trim=_trim, needs=_needs
)
