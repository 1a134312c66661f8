"""StorageClasses, which the hub sends to the nodes with volumes of these classes: the parameters that are the bridge's.

The other parameters are for the vendor's controller alone.
"""

from typing import Any, Final

from cloud.kinds.rules.fields import Body, Fields
from cloud.kinds.rules.kind_rules import KindRules, pick, without_empty
from common.objects.offline_policy import PARAMETER


def _check(fields: Fields) -> None:
    fields.text_map("parameters")
    fields.text("volumeBindingMode", allowed=("Immediate", "WaitForFirstConsumer"))


def _trim(body: Body) -> dict[str, Any]:
    binding = pick(body, "volumeBindingMode")  # for the hub alone, with manifests
    return {**binding, **without_empty({"parameters": pick(body.get("parameters"), PARAMETER)})}


RULES: Final = KindRules(
    kind="StorageClass", api_version="storage.k8s.io/v1", namespaced=False, check=_check, trim=_trim
)
