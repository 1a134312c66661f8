"""Layouts, capabilities and the table of NodePublishVolume."""

from typing import Any

import grpc
import pytest

from common.csi import csi_pb2 as pb
from examples.dirdriver.errors import CsiError
from tests.kit.testdriver import access
from tests.kit.testdriver.access import Layout, Mode, Use


def capability(
    mode: Any = Mode.SINGLE_NODE_WRITER, *, fs_type: str = "", flags: tuple[str, ...] = ()
) -> pb.VolumeCapability:
    return pb.VolumeCapability(
        mount=pb.VolumeCapability.MountVolume(fs_type=fs_type, mount_flags=flags),
        access_mode=pb.VolumeCapability.AccessMode(mode=mode),
    )


def block(mode: Any = Mode.SINGLE_NODE_WRITER) -> pb.VolumeCapability:
    return pb.VolumeCapability(
        block=pb.VolumeCapability.BlockVolume(),
        access_mode=pb.VolumeCapability.AccessMode(mode=mode),
    )


def test_block_needs_a_block_volume_and_mount_what_the_driver_makes() -> None:
    assert access.layout_of([block()], filesystem=Layout.DIRECTORY) is Layout.BLOCK
    assert access.layout_of([capability()], filesystem=Layout.DIRECTORY) is Layout.DIRECTORY
    assert access.layout_of([capability(), capability()], filesystem=Layout.FILESYSTEM) is Layout.FILESYSTEM


@pytest.mark.parametrize(
    "capabilities", [[], [block(), capability()], [pb.VolumeCapability()]], ids=["none", "both kinds", "no kind"]
)
def test_capabilities_that_no_one_volume_can_have_are_invalid(capabilities: list[pb.VolumeCapability]) -> None:
    with pytest.raises(CsiError) as failure:
        access.layout_of(capabilities, filesystem=Layout.DIRECTORY)

    assert failure.value.code is grpc.StatusCode.INVALID_ARGUMENT


def test_a_filesystem_volume_holds_ext4_unless_one_is_named() -> None:
    assert access.fs_type_of([capability()], Layout.FILESYSTEM) == "ext4"
    assert access.fs_type_of([capability(fs_type="xfs"), capability()], Layout.FILESYSTEM) == "xfs"
    assert access.fs_type_of([capability(fs_type="xfs")], Layout.DIRECTORY) == ""


def test_two_filesystems_in_one_volume_are_invalid() -> None:
    with pytest.raises(CsiError):
        access.fs_type_of([capability(fs_type="xfs"), capability(fs_type="ext4")], Layout.FILESYSTEM)


@pytest.mark.parametrize("mode", access.SINGLE_NODE | access.MULTI_NODE)
def test_a_directory_can_keep_every_access_mode(mode: int) -> None:
    assert access.unfit(capability(mode), Layout.DIRECTORY, "") == ""


@pytest.mark.parametrize("layout", [Layout.FILESYSTEM, Layout.BLOCK])
def test_a_loop_device_serves_one_node_only(layout: Layout) -> None:
    make = block if layout is Layout.BLOCK else capability

    assert all(access.unfit(make(mode), layout, "") == "" for mode in access.SINGLE_NODE)
    assert all("cannot keep access mode" in access.unfit(make(mode), layout, "") for mode in access.MULTI_NODE)


@pytest.mark.parametrize(
    ("asked", "layout", "reason"),
    [
        (pb.VolumeCapability(), Layout.DIRECTORY, "no access type"),
        (capability(Mode.UNKNOWN), Layout.DIRECTORY, "no access mode"),
        (capability(99), Layout.DIRECTORY, "access mode 99"),
        (block(), Layout.DIRECTORY, "cannot be accessed as block"),
        (capability(), Layout.BLOCK, "cannot be accessed as mount"),
        (capability(fs_type="ext4"), Layout.DIRECTORY, "leave fs_type empty"),
        (capability(fs_type="xfs"), Layout.FILESYSTEM, "holds ext4"),
        (capability(flags=("subvol=secret",)), Layout.DIRECTORY, "bind mount cannot have"),
    ],
)
def test_a_capability_that_a_volume_cannot_serve_is_told_with_its_reason(
    asked: pb.VolumeCapability, layout: Layout, reason: str
) -> None:
    assert reason in access.unfit(asked, layout, "ext4" if layout is Layout.FILESYSTEM else "")


def test_a_reason_never_quotes_mount_flags() -> None:
    assert "secret" not in access.unfit(capability(flags=("password=secret",)), Layout.DIRECTORY, "")


def test_a_directory_takes_the_flags_of_a_bind_mount() -> None:
    assert access.unfit(capability(flags=("noexec", "nosuid")), Layout.DIRECTORY, "") == ""


def test_equal_capabilities_share_a_fingerprint_and_others_do_not() -> None:
    assert access.fingerprint(capability(flags=("ro",))) == access.fingerprint(capability(flags=("ro",)))
    assert access.fingerprint(capability(flags=("ro",))) != access.fingerprint(capability())


SEVERAL = [Mode.SINGLE_NODE_MULTI_WRITER, Mode.MULTI_NODE_READER_ONLY, Mode.MULTI_NODE_MULTI_WRITER]
ONE = [Mode.SINGLE_NODE_WRITER, Mode.SINGLE_NODE_READER_ONLY, Mode.SINGLE_NODE_SINGLE_WRITER]


@pytest.mark.parametrize("mode", SEVERAL + ONE)
def test_the_same_publication_again_is_known(mode: int) -> None:
    assert access.may_publish(Use("/t", "p", mode), [Use("/t", "p", mode)])


@pytest.mark.parametrize("mode", SEVERAL + ONE)
def test_the_same_target_with_other_arguments_already_exists(mode: int) -> None:
    with pytest.raises(CsiError) as failure:
        access.may_publish(Use("/t", "other", mode), [Use("/t", "p", mode)])

    assert failure.value.code is grpc.StatusCode.ALREADY_EXISTS


@pytest.mark.parametrize("mode", SEVERAL)
@pytest.mark.parametrize("arguments", ["p", "other"])
def test_a_mode_for_several_writers_or_nodes_allows_another_target(mode: int, arguments: str) -> None:
    assert not access.may_publish(Use("/other", arguments, mode), [Use("/t", "p", mode)])


@pytest.mark.parametrize("mode", ONE)
@pytest.mark.parametrize("arguments", ["p", "other"])
def test_a_mode_for_one_writer_allows_one_target(mode: int, arguments: str) -> None:
    with pytest.raises(CsiError) as failure:
        access.may_publish(Use("/other", arguments, mode), [Use("/t", "p", mode)])

    assert failure.value.code is grpc.StatusCode.FAILED_PRECONDITION
    assert "/t" in failure.value.message


@pytest.mark.parametrize("mode", SEVERAL + ONE)
def test_the_first_publication_is_new(mode: int) -> None:
    assert not access.may_publish(Use("/t", "p", mode), [])
