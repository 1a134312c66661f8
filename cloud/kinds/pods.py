"""Pods, which the hub sends to the node that runs them: their volumes, the uses of these, and the containers' ends.

Images, commands and environments have nothing to do with volumes and may hold secrets, so the hub does not send them.
"""

from collections.abc import Iterable
from typing import Any, Final

from cloud.kinds.persistentvolumeclaims import check_spec
from cloud.kinds.rules.fields import Body, Fields, part
from cloud.kinds.rules.kind_rules import KindRules, pick, without_empty
from common.objects.objects import Ref

_SPEC: Final = (
    "nodeName", "serviceAccountName", "securityContext", "terminationGracePeriodSeconds", "restartPolicy", "hostUsers",
    "runtimeClassName",
)  # fmt: skip
_CONTAINER_LISTS: Final = ("initContainers", "containers", "ephemeralContainers")
_CONTAINER: Final = ("name", "volumeMounts", "volumeDevices", "securityContext", "restartPolicy")
_STATUS_LISTS: Final = ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses")
_USES: Final = ("volumeMounts", "volumeDevices")
_USE: Final = ("name", "mountPath", "devicePath", "readOnly", "subPath", "subPathExpr")
_SOURCES: Final = ("persistentVolumeClaim", "csi", "ephemeral")  # the volumes that a CSI driver may serve


def node_of(body: Body) -> str:
    return str(body["spec"]["nodeName"])


def has_ended(body: Body) -> bool:
    return part(body, "status").get("phase") in {"Succeeded", "Failed"}


def claim_names(body: Body) -> list[str]:
    """The names of the claims that the pod mounts, those of its generic ephemeral volumes included."""
    names = []
    for volume in body["spec"].get("volumes", ()):
        if claim := volume.get("persistentVolumeClaim"):
            names.append(claim["claimName"])
        elif "ephemeral" in volume:
            names.append(ephemeral_claim_name(body["metadata"]["name"], volume["name"]))
    return names


def inline_drivers(body: Body) -> list[str]:
    return [inline["driver"] for volume in body["spec"].get("volumes", ()) if (inline := volume.get("csi"))]


def ephemeral_claim_name(pod: str, volume: str) -> str:
    """The name of the claim that Kubernetes makes for a generic ephemeral volume: `<pod>-<volume>`."""
    return f"{pod}-{volume}"


def _check(fields: Fields) -> None:
    fields.part("metadata").number("deletionGracePeriodSeconds")
    spec = fields.part("spec", required=True)
    spec.name("nodeName", required=True)
    spec.name("serviceAccountName")
    spec.name("runtimeClassName")
    security = spec.part("securityContext")
    security.number("fsGroup")
    security.text("fsGroupChangePolicy", allowed=("Always", "OnRootMismatch"))
    security.part("seLinuxOptions")
    security.text("seLinuxChangePolicy", allowed=("MountOption", "Recursive"))
    for name in _CONTAINER_LISTS:
        for container in spec.parts(name, required=name == "containers"):
            _check_container(container)
    seen = set()
    for volume in spec.parts("volumes"):
        _check_volume(volume)
        if volume.body["name"] in seen:
            volume.refuse("name", "is that of an earlier volume of the pod")
        seen.add(volume.body["name"])
    status = fields.part("status")
    status.text("phase")  # any phase: a refused pod would count as gone for a hub that starts
    for name in _STATUS_LISTS:
        for container in status.parts(name):
            container.part("state").part("terminated")


def _check_container(container: Fields) -> None:
    container.text("name", required=True)
    container.part("securityContext").part("seLinuxOptions")
    for name in _USES:
        for use in container.parts(name):
            use.text("name", required=True)
            use.text("mountPath")
            use.text("devicePath")
            use.flag("readOnly")


def _check_volume(volume: Fields) -> None:
    volume.label("name", required=True)
    if volume.has("persistentVolumeClaim"):
        claim = volume.part("persistentVolumeClaim")
        claim.name("claimName", required=True)
        claim.flag("readOnly")
    if volume.has("csi"):
        _check_inline(volume.part("csi"))
    if volume.has("ephemeral"):
        template = volume.part("ephemeral").part("volumeClaimTemplate", required=True)
        check_spec(template.part("spec", required=True))
        for name in ("labels", "annotations"):
            template.part("metadata").text_map(name)


def _check_inline(inline: Fields) -> None:
    inline.driver("driver")
    inline.text("fsType")
    inline.flag("readOnly")
    inline.text_map("volumeAttributes")
    if inline.has("nodePublishSecretRef"):
        inline.part("nodePublishSecretRef").name("name", required=True)


def _trim(body: Body) -> dict[str, Any]:
    spec = pick(body["spec"], *_SPEC)
    for name in _CONTAINER_LISTS:
        spec[name] = [_trimmed_container(container) for container in body["spec"].get(name) or ()]
    spec["volumes"] = [
        pick(volume, "name", *_SOURCES) for volume in body["spec"].get("volumes") or () if pick(volume, *_SOURCES)
    ]
    return without_empty({"spec": without_empty(spec), "status": _trimmed_status(body.get("status"))})


def _trimmed_container(container: Body) -> dict[str, Any]:
    kept = pick(container, *_CONTAINER)
    if "securityContext" in kept:
        kept["securityContext"] = pick(kept["securityContext"], "seLinuxOptions", "privileged")
    for name in _USES:
        kept[name] = [pick(use, *_USE) for use in kept.get(name, ())]
    return without_empty(kept)


def _trimmed_status(status: Body | None) -> dict[str, Any]:
    # The ended containers, because a pod that is being deleted is over when all have ended.
    kept = pick(status, "phase")
    for name in _STATUS_LISTS:
        ended = [
            {"name": container.get("name"), "state": {"terminated": {}}}
            for container in (status or {}).get(name) or ()
            if (container.get("state") or {}).get("terminated") is not None
        ]
        if ended:
            kept[name] = ended
    return kept


def _needs(body: Body) -> Iterable[Ref]:
    namespace = body["metadata"]["namespace"]
    for volume in body["spec"].get("volumes", ()):
        if inline := volume.get("csi"):
            yield Ref("CSIDriver", "", inline["driver"])
            if secret := inline.get("nodePublishSecretRef"):
                yield Ref("Secret", namespace, secret["name"])
    for name in claim_names(body):
        yield Ref("PersistentVolumeClaim", namespace, name)


RULES: Final = KindRules(kind="Pod", api_version="v1", namespaced=True, check=_check, trim=_trim, needs=_needs)
