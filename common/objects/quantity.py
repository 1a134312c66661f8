"""A quantity: a size in Kubernetes' notation (`10Gi`, `1500m`, `1e9`), in bytes.

Rules:

* As in apimachinery's pkg/api/resource, a fraction of a byte counts as a whole one.
* A size is not negative and has at most 63 bits, as in CSI's fields.
* The error does not show the text: it comes from files and peers, and goes into logs.
"""

import re

_MOST_BYTES = 2**63 - 1

_PATTERN = re.compile(
    r"(\+?(?:\d{1,30}(?:\.\d{0,30})?|\.\d{1,30}))(Ki|Mi|Gi|Ti|Pi|Ei|n|u|m|k|M|G|T|P|E|[eE][+-]?\d{1,2})?",
    re.ASCII,
)

_POWERS = {
    **{suffix: (1024, power) for power, suffix in enumerate(("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"))},
    **{suffix: (1000, power) for power, suffix in enumerate(("n", "u", "m", "", *"kMGTPE"), -3)},
}  # fmt: skip
_NONE = "it is not a quantity such as 10Gi, from 0 to less than 8Ei"


def parse_bytes(quantity: object) -> int:
    """The bytes of a quantity, rounded up. Raises ValueError if it is none."""
    if isinstance(quantity, int) and not isinstance(quantity, bool):
        return _checked(quantity)
    match = _PATTERN.fullmatch(quantity) if isinstance(quantity, str) else None
    if match is None:
        raise ValueError(_NONE)
    whole, _, fraction = match[1].partition(".")
    suffix = match[2] or ""
    base, power = _POWERS.get(suffix) or (10, int(suffix[1:]))
    over = int(whole + fraction) * base ** max(power, 0)
    under = 10 ** len(fraction) * base ** max(-power, 0)
    return _checked(-(-over // under))


def bytes_of(quantity: object) -> int:
    """As `parse_bytes`; 0 if the quantity is missing or unreadable, as from a newer API server."""
    try:
        return parse_bytes(quantity)
    except ValueError:
        return 0


def _checked(size: int) -> int:
    if not 0 <= size <= _MOST_BYTES:
        raise ValueError(_NONE)
    return size


def format_bytes(size: int) -> str:
    """The shortest exact quantity with a binary suffix: `10Gi`, or the plain number."""
    for suffix in ("Ei", "Pi", "Ti", "Gi", "Mi", "Ki"):
        base, power = _POWERS[suffix]
        whole, rest = divmod(size, base**power)
        if whole and not rest:
            return f"{whole}{suffix}"
    return str(size)
