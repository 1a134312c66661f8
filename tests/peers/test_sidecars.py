"""All stock sidecars on a driver's own socket: what a volume's life looks like with no bridge in between."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.kit.peers import manifests
from tests.kit.peers.manifests import GIB

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.kit.peers.control_plane import ControlPlane
    from tests.kit.peers.kube_api import Object
    from tests.kit.peers.sidecars import Sidecars
    from tests.kit.processes import Process

CLAIM = "PersistentVolumeClaim"


@pytest.fixture
def driver(
    namespace: str, short_dir: Path, mock_driver: Callable[..., Process], control_plane: ControlPlane
) -> Iterator[str]:
    """The name of a driver that serves on csi.sock of the test's short directory, with a class of the same name."""
    name = f"{namespace}.mock"
    mock_driver(short_dir / "csi.sock", name=name)
    control_plane.api.create(manifests.storage_class(name, allowVolumeExpansion=True))
    yield name
    control_plane.api.delete("StorageClass", name)


@pytest.fixture
def bound(
    driver: str, short_dir: Path, control_plane: ControlPlane, sidecars: Sidecars, namespace: str
) -> Iterator[Object]:
    """A claim called data, bound by csi-provisioner; its volume is gone at the test's end."""
    sidecars.start("csi-provisioner", short_dir / "csi.sock")
    api = control_plane.api
    api.create(manifests.claim("data", namespace=namespace, storage_class=driver))
    claim = api.wait_until(
        CLAIM, "data", lambda it: it["status"]["phase"] == "Bound", what="bound", namespace=namespace
    )
    yield claim
    api.delete(CLAIM, "data", namespace=namespace)
    api.wait_gone("PersistentVolume", claim["spec"]["volumeName"])


def test_a_claim_is_bound_to_a_volume_of_the_driver(bound: Object, driver: str, control_plane: ControlPlane) -> None:
    volume = control_plane.api.get("PersistentVolume", bound["spec"]["volumeName"])

    assert volume is not None
    assert volume["spec"]["csi"]["driver"] == driver
    assert volume["spec"]["csi"]["volumeAttributes"]["name"] == f"pvc-{bound['metadata']['uid']}"
    assert volume["spec"]["capacity"]["storage"] == "1Gi"


def test_an_attachment_is_attached_and_detached(
    bound: Object, driver: str, short_dir: Path, control_plane: ControlPlane, sidecars: Sidecars
) -> None:
    api, name = control_plane.api, f"attach-{driver}"
    sidecars.start("csi-attacher", short_dir / "csi.sock")
    api.create(manifests.node(name))
    api.create(manifests.csi_node(name, drivers={driver: driver}))

    volume = bound["spec"]["volumeName"]
    api.create(manifests.volume_attachment(name, driver=driver, node=name, volume=volume))
    attached = api.wait_status("VolumeAttachment", name, "attached")
    assert attached["metadata"]["finalizers"] == [f"external-attacher/{driver.replace('.', '-')}"]

    api.delete("VolumeAttachment", name)
    api.wait_gone("VolumeAttachment", name)
    api.delete("CSINode", name)
    api.delete("Node", name)


def test_a_claim_that_asks_for_more_gets_more(
    bound: Object, short_dir: Path, control_plane: ControlPlane, sidecars: Sidecars, namespace: str
) -> None:
    api = control_plane.api
    sidecars.start("csi-resizer", short_dir / "csi.sock")

    wanted = {"spec": {"resources": {"requests": {"storage": str(2 * GIB)}}}}
    api.patch(CLAIM, "data", wanted, namespace=namespace)

    api.wait_until(
        CLAIM, "data", lambda it: it["status"]["capacity"]["storage"] == "2Gi", what="of 2 GiB", namespace=namespace
    )


def test_a_snapshot_of_a_claim_becomes_ready(
    bound: Object, driver: str, short_dir: Path, control_plane: ControlPlane, sidecars: Sidecars
) -> None:
    api, namespace = control_plane.api, bound["metadata"]["namespace"]
    sidecars.install_snapshot_kinds()
    sidecars.start_snapshot_controller()
    sidecars.start("csi-snapshotter", short_dir / "csi.sock")
    api.create(manifests.snapshot_class(driver))

    api.create(manifests.snapshot("yesterday", namespace=namespace, snapshot_class=driver, claim="data"))
    ready = api.wait_status("VolumeSnapshot", "yesterday", "readyToUse", namespace=namespace)

    api.delete("VolumeSnapshot", "yesterday", namespace=namespace)
    api.wait_gone("VolumeSnapshotContent", ready["status"]["boundVolumeSnapshotContentName"])
    api.delete("VolumeSnapshotClass", driver)
