"""Sizes as people write them."""

import re

from examples.dirdriver.sizes import GIB, MIB

KIB = 1024
TIB = 1024 * GIB

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
