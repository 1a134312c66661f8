"""Kubernetes' PersistentVolume controller binds the claims of our cases as the hub binds those of manifests."""

import pytest

from tests.kit.binding_cases import CASES, Case
from tests.kit.peers.control_plane import ControlPlane
from tests.kit.peers.kube_api import Object

_CLAIM, _VOLUME = "PersistentVolumeClaim", "PersistentVolume"
_LATER = Case("a class of its own", "a", {"storageClassName": "later"}, ({"storageClassName": "later"},))


@pytest.mark.slow
def test_kubernetes_binds_each_claim_to_the_volume_that_the_case_names(control_plane: ControlPlane) -> None:
    api, unlike = control_plane.api, {}
    for case in CASES:
        namespace = control_plane.new_namespace()
        *volumes, data = case.objects(prefix=f"{namespace}-", namespace=namespace)
        free, later = _LATER.objects(prefix=f"{namespace}-later-", namespace=namespace)
        later["metadata"]["name"] = "later"
        for volume in (*volumes, free):
            name = api.create(volume)["metadata"]["name"]
            api.wait_until(_VOLUME, name, _is_seen, what="that the controller has seen")
        # The controller takes one claim after another: once the later one is bound, it has looked at the first.
        api.create(data)
        api.create(later)
        for name in ("data", "later") if case.has else ("later",):
            api.wait_until(_CLAIM, name, _is_bound, what="that is bound", namespace=namespace)
        found = api.get(_CLAIM, "data", namespace=namespace)
        assert found is not None
        has = found["spec"]["volumeName"].removeprefix(f"{namespace}-") if _is_bound(found) else ""
        if has != case.has:
            unlike[str(case)] = has
        # The next cases find no claim that waits, and no free volume.
        unused = [] if has else [(_CLAIM, "data", namespace)]
        unused += [(_VOLUME, name, None) for it in volumes if (name := it["metadata"]["name"]) != f"{namespace}-{has}"]
        for kind, name, where in unused:
            api.delete(kind, name, namespace=where)
            api.wait_gone(kind, name, namespace=where)
    assert unlike == {}


def _is_seen(volume: Object) -> bool:
    return volume["status"].get("phase") not in (None, "Pending")


def _is_bound(claim: Object) -> bool:
    return bool(claim["status"]["phase"] == "Bound")
