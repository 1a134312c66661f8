"""CSIDrivers, which the hub sends to the nodes with volumes of these drivers."""

from typing import Any, Final

from cloud.kinds.rules.fields import Body, Fields
from cloud.kinds.rules.kind_rules import KindRules, pick, without_empty

_FLAGS: Final = (
    "attachRequired", "podInfoOnMount", "requiresRepublish", "seLinuxMount", "storageCapacity",
    "serviceAccountTokenInSecrets",
)  # fmt: skip


def _check(fields: Fields) -> None:
    spec = fields.part("spec")
    for name in _FLAGS:
        spec.flag(name)
    spec.text("fsGroupPolicy", allowed=("ReadWriteOnceWithFSType", "File", "None"))
    spec.texts("volumeLifecycleModes", allowed=("Persistent", "Ephemeral"))
    spec.number("nodeAllocatableUpdatePeriodSeconds")
    for token in spec.parts("tokenRequests"):
        token.text("audience")
        token.number("expirationSeconds")


def _trim(body: Body) -> dict[str, Any]:
    spec = body.get("spec") or {}
    return without_empty({"spec": pick(spec, *spec)})


RULES: Final = KindRules(kind="CSIDriver", api_version="storage.k8s.io/v1", namespaced=False, check=_check, trim=_trim)
