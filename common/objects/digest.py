"""A digest: 2 KB that sum up a set of objects. Equal sets have equal digests, so peers need not exchange lists.

Each object falls into one of 256 buckets by its key. A bucket's sum is the XOR of its objects' hashes: the order does
not matter.
"""

from collections.abc import Iterable, Mapping
from hashlib import blake2b

from common.errors import RemoteProtocolError
from common.objects.objects import Ref, Stamp

BUCKETS = 256  # Of 10,000 objects, each bucket has 40. One changed object costs the list of its bucket, about 4 KB.

_SUM_BYTES = 8
_SIZE_BYTES = BUCKETS * _SUM_BYTES


def digest_of(stamps: Mapping[Ref, Stamp]) -> bytes:
    sums = [0] * BUCKETS
    for ref, stamp in stamps.items():
        hashed = _key(ref)
        bucket = hashed.digest()[0]
        hashed.update(f"{stamp.uid}\0{stamp.version}".encode(errors="replace"))
        sums[bucket] ^= int.from_bytes(hashed.digest(), "big")
    return b"".join(value.to_bytes(_SUM_BYTES, "big") for value in sums)


def differing(ours: bytes, theirs: bytes) -> bytes:
    """The buckets whose sums differ in two digests, one byte each. Raises RemoteProtocolError."""
    if len(theirs) != _SIZE_BYTES:
        raise RemoteProtocolError(f"a digest of {len(theirs)} bytes, not {_SIZE_BYTES}")
    return bytes(
        bucket
        for bucket, start in enumerate(range(0, _SIZE_BYTES, _SUM_BYTES))
        if ours[start : start + _SUM_BYTES] != theirs[start : start + _SUM_BYTES]
    )


def bucket_of(ref: Ref) -> int:
    return _key(ref).digest()[0]


def in_buckets(stamps: Mapping[Ref, Stamp], buckets: bytes) -> Iterable[tuple[Ref, Stamp]]:
    wanted = frozenset(buckets)
    if not wanted:
        return []
    return [(ref, stamp) for ref, stamp in stamps.items() if bucket_of(ref) in wanted]


def _key(ref: Ref) -> "blake2b":
    return blake2b(f"{ref.kind}\0{ref.namespace}\0{ref.name}\0".encode(errors="replace"), digest_size=_SUM_BYTES)
