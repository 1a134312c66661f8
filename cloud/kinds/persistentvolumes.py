"""PersistentVolumes, which the hub sends to the nodes whose pods use their claims.

Rules:

* Users may write claims, and a claim names its volume. So a node gets a volume and its secrets only if the volume names
  the claim, too, as with Kubernetes' node authorizer.
* A node gets the volume's secrets for node calls. The secrets for controller calls travel with these calls.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from cloud.kinds.rules.fields import Body, Fields, part
from cloud.kinds.rules.kind_rules import KindRules, pick, quantities, without_empty
from common.objects.node_selector import OPERATORS
from common.objects.objects import Ref

ACCESS_MODES: Final = ("ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod")
VOLUME_MODES: Final = ("Filesystem", "Block")

_SPEC: Final = (
    "accessModes", "capacity", "claimRef", "csi", "mountOptions", "nodeAffinity", "persistentVolumeReclaimPolicy",
    "storageClassName", "volumeAttributesClassName", "volumeMode",
)  # fmt: skip
_NODE_SECRETS: Final = ("nodeStageSecretRef", "nodePublishSecretRef", "nodeExpandSecretRef")
_CONTROLLER_SECRETS: Final = ("controllerPublishSecretRef", "controllerExpandSecretRef")


def handle_of(volume: Body) -> tuple[str, str] | None:
    """The driver and the handle; None if it is of no CSI driver."""
    csi = part(volume, "spec", "csi")
    return (csi["driver"], csi["volumeHandle"]) if csi else None


def class_of(volume: Body) -> Ref | None:
    name = volume["spec"].get("storageClassName")
    return Ref("StorageClass", "", name) if name else None


def node_terms(volume: Body) -> Sequence[Mapping[str, Any]]:
    """The NodeSelectorTerms of its nodeAffinity; none if it may be used anywhere."""
    return part(volume, "spec", "nodeAffinity", "required").get("nodeSelectorTerms") or ()


def is_claimed_by(volume: Body, claim: Body) -> bool:
    ref = volume["spec"].get("claimRef") or {}
    metadata = claim["metadata"]
    names_agree = (ref.get("namespace"), ref.get("name")) == (metadata["namespace"], metadata["name"])
    return names_agree and ref.get("uid") in (None, "", metadata["uid"])


def _check(fields: Fields) -> None:
    spec = fields.part("spec", required=True)
    spec.part("capacity", required=True).quantity("storage", required=True)
    spec.texts("accessModes", required=True, allowed=ACCESS_MODES)
    spec.text("volumeMode", allowed=VOLUME_MODES)
    spec.texts("mountOptions")
    spec.text("storageClassName")
    spec.text("volumeAttributesClassName")
    if spec.has("claimRef"):
        claim = spec.part("claimRef")
        claim.label("namespace", required=True)
        claim.name("name", required=True)
        claim.uid("uid")
    if spec.has("nodeAffinity"):
        _check_affinity(spec.part("nodeAffinity"))
    if spec.has("csi"):
        _check_csi(spec.part("csi"))
    fields.part("status").text("phase")


def _check_affinity(affinity: Fields) -> None:
    if not affinity.has("required"):
        return
    for term in affinity.part("required").parts("nodeSelectorTerms", required=True):
        for name in ("matchExpressions", "matchFields"):
            for expression in term.parts(name):
                expression.text("key", required=True)
                expression.text("operator", required=True, allowed=OPERATORS)
                expression.texts("values")


def _check_csi(csi: Fields) -> None:
    csi.driver("driver")
    csi.text("volumeHandle", required=True)
    csi.text("fsType")
    csi.flag("readOnly")
    csi.text_map("volumeAttributes")
    for name in _NODE_SECRETS + _CONTROLLER_SECRETS:
        if csi.has(name):
            secret = csi.part(name)
            secret.name("name", required=True)
            secret.label("namespace", required=True)


def _trim(body: Body) -> dict[str, Any]:
    spec = quantities(pick(body["spec"], *_SPEC), "capacity")
    if "csi" in spec:
        spec["csi"] = {name: value for name, value in spec["csi"].items() if name not in _CONTROLLER_SECRETS}
    return without_empty({"spec": spec, "status": pick(body.get("status"), "phase")})


def _needs(body: Body) -> Iterable[Ref]:
    csi = body["spec"].get("csi")
    if not csi:
        return
    yield Ref("CSIDriver", "", csi["driver"])
    if (storage_class := class_of(body)) is not None:
        yield storage_class
    for name in _NODE_SECRETS:
        if secret := csi.get(name):
            yield Ref("Secret", secret["namespace"], secret["name"])


RULES: Final = KindRules(
    kind="PersistentVolume", api_version="v1", namespaced=False, check=_check, trim=_trim, needs=_needs
)
