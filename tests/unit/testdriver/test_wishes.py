"""What a CreateVolume request asks for, and whether an existing volume grants it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from common.csi import csi_pb2 as pb
from examples.dirdriver.errors import CsiError
from examples.dirdriver.sizes import GIB, MIB
from examples.dirdriver.topology import topology_key, topology_of
from tests.kit.testdriver import wishes
from tests.kit.testdriver.access import Layout, Mode
from tests.kit.testdriver.records import Phase, Volume
from tests.kit.testdriver.settings import Settings

KEY = topology_key("dirdriver.csi")
SETTINGS = Settings(endpoint="unix:///s", state_dir=Path("/s"), node_id="n1", mutable_parameters=("iops",))
IMAGES = replace(SETTINGS, filesystem=Layout.FILESYSTEM)


def request(*, fs_type: str = "", **fields: Any) -> pb.CreateVolumeRequest:
    capability = pb.VolumeCapability(
        mount=pb.VolumeCapability.MountVolume(fs_type=fs_type),
        access_mode=pb.VolumeCapability.AccessMode(mode=Mode.SINGLE_NODE_WRITER),
    )
    return pb.CreateVolumeRequest(**{"name": "pvc-1", "volume_capabilities": [capability]} | fields)


def volume(**fields: Any) -> Volume:
    made: dict[str, Any] = {
        "volume_id": "vol-1",
        "name": "pvc-1",
        "phase": Phase.READY,
        "owner": "n1",
        "node": "n1",
        "layout": Layout.DIRECTORY,
        "size_bytes": GIB,
    }
    return Volume(**made | fields)


def refused(asked: pb.CreateVolumeRequest, settings: Settings = SETTINGS) -> CsiError:
    with pytest.raises(CsiError) as failure:
        wishes.parse_wish(asked, settings)
    return failure.value


def test_equal_parameters_in_another_order_are_the_same_wish() -> None:
    first = wishes.parse_wish(request(parameters={"a": "1", "b": "2"}), SETTINGS)
    second = wishes.parse_wish(request(parameters={"b": "2", "a": "1"}), SETTINGS)

    assert first.parameters == second.parameters


def test_a_mutable_parameter_that_is_not_accepted_is_invalid_and_its_value_is_not_told() -> None:
    failure = refused(request(mutable_parameters={"color": "s3cret"}))

    assert failure.code is grpc.StatusCode.INVALID_ARGUMENT
    assert failure.message == "mutable_parameters: color cannot be modified; accepted: iops"


def test_kubernetes_own_mutable_parameters_are_let_through() -> None:
    wishes.parse_wish(request(mutable_parameters={"csi.storage.k8s.io/pvc/name": "c", "iops": "9"}), SETTINGS)


def test_a_filesystem_that_the_driver_cannot_make_is_invalid() -> None:
    assert refused(request(fs_type="ntfs"), IMAGES).code is grpc.StatusCode.INVALID_ARGUMENT


def test_a_source_without_an_id_is_invalid() -> None:
    source = pb.VolumeContentSource(snapshot=pb.VolumeContentSource.SnapshotSource())

    assert refused(request(volume_content_source=source)).code is grpc.StatusCode.INVALID_ARGUMENT


def test_an_xfs_volume_is_never_smaller_than_xfs_itself() -> None:
    wish = wishes.parse_wish(request(fs_type="xfs", capacity_range=pb.CapacityRange(required_bytes=10 * MIB)), IMAGES)

    assert wishes.wished_size(wish, None, IMAGES) == 300 * MIB


def test_a_copy_is_never_smaller_than_its_source() -> None:
    wish = wishes.parse_wish(request(capacity_range=pb.CapacityRange(required_bytes=MIB)), SETTINGS)

    assert wishes.wished_size(wish, volume(), SETTINGS) == GIB


@pytest.mark.parametrize(
    "source", [volume(layout=Layout.BLOCK), volume(layout=Layout.FILESYSTEM, fs_type="xfs")], ids=["block", "xfs"]
)
def test_a_source_of_another_kind_is_invalid(source: Volume) -> None:
    wish = wishes.parse_wish(request(), IMAGES)

    with pytest.raises(CsiError) as failure:
        wishes.check_source(wish, source)

    assert failure.value.code is grpc.StatusCode.INVALID_ARGUMENT


def test_a_volume_that_has_grown_since_still_grants_the_request_that_made_it() -> None:
    wish = wishes.parse_wish(request(capacity_range=pb.CapacityRange(required_bytes=MIB)), SETTINGS)

    wishes.check_granted(wish, volume(), KEY)


def test_mutable_parameters_may_have_been_modified_since() -> None:
    wish = wishes.parse_wish(request(mutable_parameters={"iops": "1"}), SETTINGS)

    wishes.check_granted(wish, volume(mutable_parameters='{"iops": "2"}'), KEY)


@pytest.mark.parametrize(
    ("asked", "different"),
    [
        (request(capacity_range=pb.CapacityRange(required_bytes=2 * GIB)), "capacity_range"),
        (request(capacity_range=pb.CapacityRange(limit_bytes=MIB)), "capacity_range"),
        (request(parameters={"a": "1"}), "parameters"),
        (
            request(
                volume_content_source=pb.VolumeContentSource(
                    volume=pb.VolumeContentSource.VolumeSource(volume_id="vol-2")
                )
            ),
            "volume_content_source",
        ),
        (
            request(accessibility_requirements=pb.TopologyRequirement(requisite=[topology_of(KEY, "n2")])),
            "accessibility_requirements",
        ),
    ],
)
def test_a_name_that_is_taken_with_other_arguments_already_exists(
    asked: pb.CreateVolumeRequest, different: str
) -> None:
    with pytest.raises(CsiError, match=f"vol-1, with another {different}") as failure:
        wishes.check_granted(wishes.parse_wish(asked, SETTINGS), volume(), KEY)

    assert failure.value.code is grpc.StatusCode.ALREADY_EXISTS
