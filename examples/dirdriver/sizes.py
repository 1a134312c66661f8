"""Sizes in bytes: the choice of a size for a CapacityRange."""

from common.csi import csi_pb2 as pb
from examples.dirdriver import errors

MIB = 1024 * 1024
GIB = 1024 * MIB

BLOCK_BYTES = 4096  # sparse files grow in steps of this: the block size of ext4, xfs and most filesystems below them
SMALLEST_BYTES = MIB  # the smallest volume: ext4 cannot be made much smaller
DEFAULT_BYTES = GIB  # the size for a request without one


def check_range(wanted: pb.CapacityRange) -> None:
    """Refuse a range without any size in it: INVALID_ARGUMENT or OUT_OF_RANGE."""
    if wanted.required_bytes < 0 or wanted.limit_bytes < 0:
        raise errors.invalid("capacity_range holds a negative size")
    if 0 < wanted.limit_bytes < wanted.required_bytes:
        raise errors.out_of_range("capacity_range: limit_bytes is below required_bytes")


def choose_size(wanted: pb.CapacityRange, *, smallest: int, largest: int, default: int, step: int = 1) -> int:
    """The size of a new or grown volume: a multiple of `step` in the request's range (zeros mean unset). May raise."""
    check_range(wanted)
    limit = wanted.limit_bytes or largest
    target = wanted.required_bytes or min(default, limit)
    size = -(-max(target, smallest) // step) * step
    if size > largest:
        raise errors.out_of_range(f"a volume has at most {largest} bytes here; ask for less")
    if size > limit:
        raise errors.out_of_range(f"the volume cannot be smaller than {size} bytes, and limit_bytes is below that")
    return size


def fits(size_bytes: int, wanted: pb.CapacityRange) -> bool:
    return wanted.required_bytes <= size_bytes and (not wanted.limit_bytes or size_bytes <= wanted.limit_bytes)
