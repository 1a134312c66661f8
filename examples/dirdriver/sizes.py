"""A size in bytes: how people write it, and which one a CapacityRange asks for."""

import re

from common.csi import csi_pb2 as pb
from examples.dirdriver import errors

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
TIB = 1024 * GIB

BLOCK_BYTES = 4096
"""Sparse files grow in steps of this: the block of ext4, xfs and nearly every filesystem that holds the file."""

SMALLEST_BYTES = MIB
"""The smallest volume: ext4 cannot be made much smaller."""

DEFAULT_BYTES = GIB
"""What a request without a size gets."""

_UNITS = {"": 1, "K": KIB, "KI": KIB, "M": MIB, "MI": MIB, "G": GIB, "GI": GIB, "T": TIB, "TI": TIB}
_SIZE = re.compile(r"(\d+)\s*([A-Z]{0,2}?)B?", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Bytes of `1073741824`, `1Gi`, `1G`, `1GiB`. Units are binary throughout, as in a StorageClass.

    Raises:
        ValueError: it is no size.
    """
    found = _SIZE.fullmatch(text.strip())
    unit = found and _UNITS.get(found[2].upper())
    if not found or not unit:
        raise ValueError(f"{text!r} is no size: write bytes or a number with Ki, Mi, Gi or Ti")
    return int(found[1]) * unit


def show_size(size_bytes: int) -> str:
    """`10Gi` for 10737418240, and plain bytes where no unit divides them."""
    for unit, factor in (("Ti", TIB), ("Gi", GIB), ("Mi", MIB), ("Ki", KIB)):
        if size_bytes and size_bytes % factor == 0:
            return f"{size_bytes // factor}{unit}"
    return f"{size_bytes} bytes"


def check_range(wanted: pb.CapacityRange) -> None:
    """Refuse a range that holds no size.

    Raises:
        CsiError: INVALID_ARGUMENT for negative bounds, OUT_OF_RANGE where the limit is below what is required.
    """
    if wanted.required_bytes < 0 or wanted.limit_bytes < 0:
        raise errors.invalid("capacity_range holds a negative size")
    if 0 < wanted.limit_bytes < wanted.required_bytes:
        raise errors.out_of_range("capacity_range: limit_bytes is below required_bytes")


def choose_size(wanted: pb.CapacityRange, *, smallest: int, largest: int, default: int, step: int = 1) -> int:
    """The size of a new or grown volume.

    Args:
        wanted: the request's range; zeros mean unset (CSI spec, CapacityRange).
        smallest: what the volume cannot be smaller than: its source, its filesystem's minimum, its present size.
        largest: `--max-volume-size`.
        default: the size where the request asks for none.
        step: sizes are multiples of this.

    Returns:
        Bytes: at least what is required, within the limit, a multiple of `step`.

    Raises:
        CsiError: INVALID_ARGUMENT or OUT_OF_RANGE if there is no such size.
    """
    check_range(wanted)
    limit = wanted.limit_bytes or largest
    target = wanted.required_bytes or min(default, limit)
    size = -(-max(target, smallest) // step) * step
    if size > largest:
        raise errors.out_of_range(f"a volume has at most {show_size(largest)} here; ask for less")
    if size > limit:
        raise errors.out_of_range(f"the volume cannot be smaller than {show_size(size)}, and limit_bytes is below that")
    return size


def fits(size_bytes: int, wanted: pb.CapacityRange) -> bool:
    """Whether an existing volume's size is within the range that a repeated request asks for."""
    return wanted.required_bytes <= size_bytes and (not wanted.limit_bytes or size_bytes <= wanted.limit_bytes)
