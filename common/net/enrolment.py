"""Enrolment: the messages by which a node joins a hub and renews its certificate, and the token that invites it.

    stream   over                          request          answer
    CA       join listener, unverified     AskCa            CaCertificates
    JOIN     join listener                 Join             Issued or Refused
    RENEW    join listener                 Renew            Issued or Refused
    RENEW    an admitted agent's link      Renew            Issued or Refused

Rules:

* The agent makes a key, stores it, and only then sends the certificate request. It repeats a request whose answer was
  lost: the hub answers the same key with the same certificate, and takes no second use of the token.
* The hub's join listener proves its name with a certificate under the CA of the token's pin. An agent sends the token's
  secret only on a connection that it has verified so.
* On an admitted link, TLS has proved the present key, and `Renew` has neither certificate nor signature. On the join
  listener the present key signs `renewal_text`: TLS would refuse the expired certificate.
* Each request and each answer is one message of its stream, as `common.codec` writes it. A stream ends with OK after
  its answer, also after `JoinRefused`.
"""

import base64
import binascii
import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from common.codec import LARGEST_NUMBER, Codec
from common.errors import RemoteProtocolError
from common.net.endpoint import hub_endpoint

# The beginnings of a certificate's URIs (subject alternative names), which hold:
NODE_URI: Final = "csi-bridge:node:"  # its node's name
GENERATION_URI: Final = "csi-bridge:generation:"  # its generation: 1 for a node's first one from the hub, then 2
RIGHT_URI: Final = "csi-bridge:may-run:"  # a driver that the node may report; there is one for each

MAX_REQUEST_BYTES: Final = 65_536  # of a join or renewal, which has about 2 kB with a long chain of certificates
LONGEST_TOKEN_CHARS: Final = 4_096  # the longest token, of which a terminal takes as many characters on one line

_GENERATION: Final = re.compile(r"[1-9][0-9]{0,18}")
_PREFIX: Final = "csi1."
_DAMAGED: Final = "the token is damaged, or of a newer hub; paste the whole line that csi-bridge token create printed"
_SECRET_BYTES: Final = 32
_PIN_BYTES: Final = 32
_RENEWAL: Final = b"csi-bridge renewal 1\0"


class RefusedFor(StrEnum):
    """The hub's reason why it issues no certificate. A newer hub may know more."""

    # The token is unknown, revoked, expired, used up, or for another node. The agent needs a new one.
    TOKEN = "token"  # noqa: S105  # a reason
    NODE = "node"  # the node has joined before, and the token names no node: its own token must name it
    REQUEST = "request"  # the certificate request, or the signature of the present key, is not valid
    # The present certificate is not one that this hub renews: an unknown CA, no generation, or past the grace.
    CERTIFICATE = "certificate"
    DENIED = "denied"  # an operator denies the node or its certificate
    COPY = "copy"  # a later certificate of the node has replaced the present one
    NO_CA_KEY = "no-ca-key"  # the hub signs no certificates: it runs without --ca-key. Certificates come from files.
    BUSY = "busy"  # too many requests at once, or the hub's disk takes nothing: the same request later may succeed


@dataclass(frozen=True, slots=True)
class AskCa:
    """The agent asks for the certificates of the hub's CA."""


@dataclass(frozen=True, slots=True)
class CaCertificates:
    """The hub's CA certificates, several while the CA changes."""

    pem: bytes


@dataclass(frozen=True, slots=True)
class Join:
    """A new node asks for its first certificate."""

    token: str  # its id
    secret: bytes
    node: str
    request: bytes  # a PKCS#10 certificate request (DER) for an EC P-256 key; the hub reads its key and signature alone


@dataclass(frozen=True, slots=True)
class Renew:
    """A node asks for its next certificate. The last two fields are for the join listener alone."""

    request: bytes  # as in `Join`, for the next key
    certificate: bytes = b""  # the present one (DER), which may have expired
    signature: bytes = b""  # the present key's (ECDSA with SHA-256) over `renewal_text`


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate."""

    chain: bytes  # the node's certificate, then intermediate ones, as PEM: the content of a --tls-cert file
    ca: bytes  # PEM: the content of a --tls-ca file
    generation: int  # counts the node's certificates
    renew_grace_s: int  # for so long after its end the certificate can be renewed at the join listener
    hubs: tuple[str, ...]  # the addresses for agents' links, as --hub takes them
    joins: tuple[str, ...]  # those of the join listener; none while the hub has no such listener
    one_hub: bool = False  # `hubs` are names of one hub, of which the node needs one; else each is of another hub


@dataclass(frozen=True, slots=True)
class JoinRefused:
    """The hub issues no certificate."""

    reason: str  # a `RefusedFor`, or a newer hub's word
    message: str
    retry_s: int = 0  # the same request may succeed after this time; 0: only an operator can change the answer


Request = AskCa | Join | Renew  # every message of an agent
Answer = CaCertificates | Issued | JoinRefused  # every message of a hub

TYPES: dict[int, type[Request | Answer]] = {
    0: AskCa,
    1: CaCertificates,
    2: Join,
    3: Renew,
    4: Issued,
    5: JoinRefused,
}

_CODEC: Codec[Request | Answer] = Codec(TYPES)

encode = _CODEC.encode  # returns one message's bytes


def decode(data: bytes) -> Request | Answer:
    """The one message of these bytes. Raises RemoteProtocolError if they are not one that this program knows."""
    found = _CODEC.decode(data)
    if len(found) != 1:
        raise RemoteProtocolError(f"{len(found)} messages of enrolment, where one is expected")
    return found[0]


def renewal_text(certificate: bytes, request: bytes) -> bytes:
    """The bytes that the present key signs when a node renews at the join listener. Both are DER."""
    return _RENEWAL + hashlib.sha256(certificate).digest() + hashlib.sha256(request).digest()


def generation_of(uris: Iterable[str]) -> int:
    """The generation in a certificate's URIs; 0 if they hold none. Raises ValueError if they hold no usable one."""
    found = [uri.removeprefix(GENERATION_URI) for uri in uris if uri.startswith(GENERATION_URI)]
    if not found:
        return 0
    if len(found) > 1 or not _GENERATION.fullmatch(found[0]) or int(found[0]) > LARGEST_NUMBER:
        raise ValueError("the certificate has several generations, or one that is not a whole number above 0")
    return int(found[0])


def rights_in(uris: Iterable[str]) -> tuple[str, ...]:
    """The drivers that a node may report, by its certificate's URIs; none if the certificate has no list."""
    return tuple(uri.removeprefix(RIGHT_URI) for uri in uris if uri.startswith(RIGHT_URI))


@dataclass(frozen=True, slots=True)
class JoinToken:
    """An invitation to join a hub: the line that `csi-bridge token create` prints. Its holder may join."""

    joins: tuple[str, ...]  # the addresses of the hub's join listener, as --hub takes them, each with TLS
    pin: bytes  # the `key_fingerprint` of the CA that signed the join listener's certificate, as bytes
    id: str  # no secret
    secret: bytes

    def __repr__(self) -> str:
        return f"JoinToken(id={self.id!r}, joins={self.joins!r})"  # without the secret, as this may reach a log


_TOKENS: Codec[JoinToken] = Codec({0: JoinToken})


def format_token(token: JoinToken) -> str:
    """The token as one line of text: `csi1.` and base64url without padding (RFC 4648)."""
    return _PREFIX + base64.urlsafe_b64encode(_TOKENS.encode(token)).rstrip(b"=").decode()


def parse_token(text: str) -> JoinToken:
    """The token of a line of text. Raises ValueError, which says why, and holds no part of the text."""
    text = text.strip()
    if not text.startswith(_PREFIX):
        raise ValueError(f"a token begins with {_PREFIX}; paste the whole line that csi-bridge token create printed")
    if len(text) > LONGEST_TOKEN_CHARS:
        raise ValueError(f"a token has at most {LONGEST_TOKEN_CHARS} characters")
    body = text.removeprefix(_PREFIX)
    try:
        (token,) = _TOKENS.decode(base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True))
    except (binascii.Error, ValueError, RemoteProtocolError):
        raise ValueError(_DAMAGED) from None
    if len(token.pin) != _PIN_BYTES or len(token.secret) != _SECRET_BYTES or not token.id or not token.joins:
        raise ValueError(_DAMAGED)
    for address in token.joins:
        if not hub_endpoint(address).tls:
            raise ValueError("the token's address must begin with wss://")
    return token
