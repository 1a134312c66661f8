"""Header compression (HPACK, RFC 7541), as far as CSI Bridge needs it.

Encoding uses only the static table and plain literals, and keeps no state. So a block can be made once and used on
every connection; bytes are cheap on a UNIX socket. Decoding must handle every encoding of a peer, so it uses jh2's
decoder in Rust. jh2's public decoder is in Python and four times slower.
"""

import re
from operator import itemgetter
from typing import TypeAlias

from jh2._hazmat import Decoder as _RustDecoder

from common.relay.errors import Http2Error
from common.relay.frames import ErrorCode

Header: TypeAlias = tuple[bytes, bytes]  # lower-case name, value

_FIELD_BYTES = 32  # the overhead of a field in the size of a header list (RFC 9113, section 6.5.2)

_FEW_FIELDS = 64  # so many fields add 2 KiB of that overhead at most, which nobody misses: their sizes are not added up

_MOST_KNOWN = 8  # the decoded blocks that are kept: a peer's answers have two or three

# Matches a short block of indexed fields, whose indexes have one byte each (RFC 7541, 6.1), and of the empty message
# that C-core's servers write as a literal without indexing (6.2.2).
_STORES_NOTHING = re.compile(rb"(?:[\x80-\xfe]|\x00\x0cgrpc-message\x00){1,16}").fullmatch

_NAME_AND_VALUE = itemgetter(0, 1)

# A dynamic table size update to 0, for the start of a connection's first block. So no later limit of the peer can be
# too small (RFC 7541, 4.2).
NO_DYNAMIC_TABLE = b"\x20"

# Whole fields of the static table (RFC 7541, appendix A).
_INDEXED: dict[Header, bytes] = {
    (b":method", b"POST"): b"\x83",
    (b":scheme", b"http"): b"\x86",
    (b":status", b"200"): b"\x88",
}

# Names of the static table, as the start of a literal without indexing (RFC 7541, 6.2.2).
_NAMES: dict[bytes, bytes] = {
    b":authority": b"\x01",
    b":path": b"\x04",
    b":status": b"\x08",
    b"content-type": b"\x0f\x10",
    b"user-agent": b"\x0f\x2b",
}


def encode(headers: list[Header]) -> bytes:
    """One header block, valid on any connection whose first block began with `NO_DYNAMIC_TABLE`."""
    parts = []
    for header in headers:
        if (indexed := _INDEXED.get(header)) is not None:
            parts.append(indexed)
            continue
        name, value = header
        parts.append(_NAMES.get(name) or b"\x00" + _string(name))
        parts.append(_string(value))
    return b"".join(parts)


def _string(text: bytes) -> bytes:
    # Without Huffman coding (RFC 7541, 5.2); its length is an integer of 7 bits prefix (5.1).
    size = len(text)
    if size < 127:
        return bytes((size,)) + text
    size -= 127
    length = bytearray(b"\x7f")
    while size >= 128:
        length.append(size & 127 | 128)
        size >>= 7
    length.append(size)
    return bytes(length) + text


class Decoder:
    """Decodes the header blocks of one direction, in their order."""

    def __init__(self, max_list_bytes: int) -> None:
        # The fields of some blocks, not to be changed: look here before `decode`. A block that stores nothing in the
        # dynamic table means the same until another block stores something. An answer's usual headers and trailers are
        # such, so they are decoded once.
        self.known: dict[bytes, list[Header]] = {}
        self._decoder = _RustDecoder(max_list_bytes)
        self._max_list_bytes = max_list_bytes

    def decode(self, block: bytes) -> list[Header]:
        """The fields of a block.

        Raises Http2Error: the block is broken or too large. The connection cannot go on, because the table is lost.
        """
        try:
            fields = list(map(_NAME_AND_VALUE, self._decoder.decode(block, raw=True)))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - some broken blocks make it panic
            if type(error).__name__ == "OversizedHeaderListError":
                raise Http2Error("its header list is larger than the limit", ErrorCode.ENHANCE_YOUR_CALM) from None
            raise Http2Error("its header block cannot be decoded", ErrorCode.COMPRESSION_ERROR) from None
        # jh2 counts names and values alone, so thousands of small fields would pass. A few fields are never too much.
        is_long = len(fields) > _FEW_FIELDS
        if is_long and sum(len(name) + len(value) + _FIELD_BYTES for name, value in fields) > self._max_list_bytes:
            raise Http2Error("its header list is larger than the limit", ErrorCode.ENHANCE_YOUR_CALM)
        if not _STORES_NOTHING(block):
            self.known.clear()
        elif len(self.known) < _MOST_KNOWN:
            self.known[block] = fields
        return fields
