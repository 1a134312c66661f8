"""The control plane of the tests: its roles are enforced, and it lives on after its API server was killed."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest
from kubernetes.dynamic.exceptions import ForbiddenError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.kit.peers.control_plane import ControlPlane


def test_a_service_account_may_do_what_its_roles_say_and_nothing_else(
    control_plane: ControlPlane, peer: Callable[[str], Path], namespace: str
) -> None:
    control_plane.apply(peer("csi-provisioner-rbac.yaml"))

    with contextlib.closing(control_plane.api_as("default", "csi-provisioner")) as provisioner:
        assert provisioner.all("PersistentVolumeClaim", namespace=namespace) == []
        with pytest.raises(ForbiddenError):
            provisioner.all("Secret", namespace=namespace)


def test_objects_outlive_a_killed_api_server(control_plane: ControlPlane, namespace: str) -> None:
    control_plane.api_server.kill()
    assert not control_plane.ready()

    control_plane.api_server.start()
    control_plane.api_server.wait_until(control_plane.ready, what="being ready", timeout_s=180.0)

    assert control_plane.api.get("Namespace", namespace) is not None


def test_an_object_that_never_meets_its_condition_is_shown_with_its_events(
    control_plane: ControlPlane, namespace: str
) -> None:
    api = control_plane.api
    api.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings", "namespace": namespace}})
    about = {"kind": "ConfigMap", "name": "settings", "namespace": namespace}
    event = {"reason": "Neglected", "message": "nobody fills it", "involvedObject": about}
    api.create({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e", "namespace": namespace}, **event})

    with pytest.raises(AssertionError, match=r"(?s)no ConfigMap settings filled .*Neglected: nobody fills it"):
        api.wait_until(
            "ConfigMap", "settings", lambda it: "data" in it, what="filled", namespace=namespace, timeout_s=0.2
        )
