"""The choice of a size for a CapacityRange."""

import grpc
import pytest

from common.csi import csi_pb2 as pb
from examples.dirdriver import sizes
from examples.dirdriver.errors import CsiError
from examples.dirdriver.sizes import GIB, MIB


def chosen(required: int = 0, limit: int = 0, *, smallest: int = MIB, step: int = 1) -> int:
    wanted = pb.CapacityRange(required_bytes=required, limit_bytes=limit)
    return sizes.choose_size(wanted, smallest=smallest, largest=10 * GIB, default=GIB, step=step)


def test_the_required_size_is_taken() -> None:
    assert chosen(5 * GIB) == 5 * GIB


def test_without_a_size_the_default_is_taken_but_never_more_than_the_limit() -> None:
    assert chosen() == GIB
    assert chosen(limit=100 * MIB) == 100 * MIB


def test_a_size_is_never_smaller_than_the_source() -> None:
    assert chosen(2 * MIB, smallest=3 * MIB) == 3 * MIB


def test_an_image_is_rounded_up_to_whole_blocks() -> None:
    assert chosen(MIB + 1, step=4096) == MIB + 4096


@pytest.mark.parametrize(
    ("required", "limit", "smallest"),
    [(11 * GIB, 0, MIB), (2 * GIB, GIB, MIB), (0, MIB, 2 * MIB), (MIB + 1, MIB + 2, MIB)],
    ids=["above the largest", "limit below required", "limit below the source", "no whole block within the limit"],
)
def test_a_range_that_no_volume_can_satisfy_is_out_of_range(required: int, limit: int, smallest: int) -> None:
    with pytest.raises(CsiError) as failure:
        chosen(required, limit, smallest=smallest, step=4096)

    assert failure.value.code is grpc.StatusCode.OUT_OF_RANGE


def test_a_negative_size_is_an_invalid_argument() -> None:
    with pytest.raises(CsiError) as failure:
        chosen(-1)

    assert failure.value.code is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("required", "limit", "fits"),
    [(0, 0, True), (GIB, 0, True), (GIB, GIB, True), (GIB + 1, 0, False), (0, MIB, False)],
)
def test_an_existing_volume_fits_a_range_that_holds_its_size(required: int, limit: int, *, fits: bool) -> None:
    assert sizes.fits(GIB, pb.CapacityRange(required_bytes=required, limit_bytes=limit)) is fits
