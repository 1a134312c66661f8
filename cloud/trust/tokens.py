"""Join tokens: the invitations that operators make, and the check of the one that a joining node shows.

Rules:

* A token has a random id and a secret of 256 random bits. The hub tells the secret once, and keeps a hash of it alone.
* A token is for new nodes: it gives nobody the name, and so the volumes, of a node that exists. One with `replace` is
  for one node that exists: a machine joins in its place, and its new certificate replaces the earlier ones.
* A use is counted before the certificate that it gives is written. The same node with the same key may ask again
  without another use, as its first answer may be lost, or its certificate.
* The denial of a node revokes the tokens that name it (`cloud.trust.denials`).
* A token from the future was made while the hub's clock was ahead. It does not count, or it would live for years.
* Tokens that ended more than `KEPT_S` ago are removed.
"""

import asyncio
import dataclasses
import hashlib
import hmac
import re
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from typing import Final

from cloud.trust.trust_store import Certificate, Token, TrustStore
from common.errors import HandshakeRefused, order_refused
from common.net.enrolment import RefusedFor
from common.operator_orders import CreateToken
from common.pages.hub import TokenJoin, TokenStatus
from common.pages.json_form import time_of

MOST_TOKENS: Final = 10_000  # all of them are in memory
KEPT_S: Final = 30 * 86_400.0  # for so long an operator can see what became of a token
CLOCKS_S: Final = 300.0  # the hub's clock may be set back by so much at any time without a consequence
_MOST_JOINS: Final = 10  # of a token: the newest ones are shown
_SECRET_BYTES: Final = 32
_PATTERN: Final = re.compile(r"[-.a-z0-9*?\[\]!]{1,253}")  # A node's name (RFC 1123), with the wildcards of `fnmatch`
_WILDCARDS: Final = frozenset("*?[")


class Tokens:
    """The tokens of one hub."""

    def __init__(self, store: TrustStore, *, now: Callable[[], float] = time.time) -> None:
        self._store = store
        self._now = now
        # Held from the check of a token until its use is stored, and while an operator changes one
        self.changing = asyncio.Lock()

    async def create(self, asked: CreateToken) -> tuple[Token, bytes]:
        """Make a token. Returns it with its secret, which the hub does not keep.

        Raises CallError if the pattern can match no node, or there are too many tokens; WriteFailed.
        """
        if not _PATTERN.fullmatch(asked.node):
            raise order_refused("no token is made", "--node must be a node's name, or a pattern such as edge-*")
        if asked.replace and _WILDCARDS & set(asked.node):
            raise order_refused("no token is made", "--replace needs the name of one node: --node=NAME")
        gone = [it.id for it in self._store.tokens.values() if it.ends_at + KEPT_S < self._now()]
        if len(self._store.tokens) - len(gone) >= MOST_TOKENS:
            raise order_refused(
                "no token is made", f"there are {MOST_TOKENS} tokens; one with --uses serves many nodes"
            )
        secret = secrets.token_bytes(_SECRET_BYTES)
        now = self._now()
        token = Token(
            secrets.token_hex(6), _hash(secret), asked.node, tuple(asked.drivers), now, now + asked.ttl_s, asked.uses,
            asked.replace,
        )  # fmt: skip
        await self._store.save_token(token, gone=gone)
        return token, secret

    async def revoke(self, token: str) -> Token:
        """Revoke a token, and return it; nodes that have joined with it stay.

        Raises CallError if there is no such token; WriteFailed: it still counts.
        """
        if token not in self._store.tokens:
            raise order_refused(f"token {token} is not revoked", "the hub has no such token; csi-bridge token list")
        async with self.changing:
            found = self._store.tokens[token]
            revoked = dataclasses.replace(found, revoked_at=found.revoked_at or self._now())
            await self._store.save_token(revoked)
        return revoked

    async def describe(self) -> Iterable[TokenStatus]:
        joins = self._joins()
        return [
            TokenStatus(
                id=it.id,
                nodes=it.nodes,
                replace=it.replace,
                drivers=list(it.drivers),
                made_at=time_of(it.made_at),
                ends_at=time_of(it.ends_at),
                uses=it.uses,
                used=it.used,
                state=self._state_of(it),
                joins=[TokenJoin(node=it.node, at=time_of(it.issued_at), address=it.address) for it in joins[it.id]],
            )
            for it in sorted(self._store.tokens.values(), key=lambda it: it.made_at, reverse=True)
        ]

    def check(self, token: str, secret: bytes, node: str) -> Token:
        """The token of an id, if the secret is its own, the node is one of its nodes, and nobody revoked it.

        Whether it has ended or is used up counts for a first request alone (`check_use`). Raises HandshakeRefused; the
        message says why only to a peer that knows the secret.
        """
        found = self._store.tokens.get(token)
        # Also for an unknown token, so that the time of the answer does not tell which ids exist.
        expected = found.secret_hash if found is not None else "0" * 64
        if not hmac.compare_digest(expected, _hash(secret)) or found is None:
            raise HandshakeRefused(RefusedFor.TOKEN, "the hub has no such token")
        if found.revoked_at:
            raise HandshakeRefused(RefusedFor.TOKEN, "this token was revoked")
        if not fnmatchcase(node, found.nodes):
            raise HandshakeRefused(RefusedFor.TOKEN, f"this token is for {found.nodes}, not for a node named {node}")
        return found

    def check_use(self, token: Token) -> None:
        """Raise HandshakeRefused if a token may not be used once more. Operators also read who has joined with it."""
        if token.made_at > self._now() + CLOCKS_S:
            why = "the hub's clock was set back after this token was made; make a new one"
        elif token.ends_at <= self._now():
            why = "this token has ended"
        elif token.used >= token.uses:
            why = (
                f"this token is used up ({token.used} of {token.uses}): make a new one; csi-bridge token list on the "
                f"hub's host shows who joined with it"
            )
        else:
            return
        joins = ", ".join(f"{it.node} {it.asked}" for it in self._joins()[token.id])
        raise HandshakeRefused(RefusedFor.TOKEN, why, shown=f"{why}; joined with it: {joins}" if joins else why)

    def _joins(self) -> defaultdict[str, list[Certificate]]:
        found: defaultdict[str, list[Certificate]] = defaultdict(list)
        joins = (it for known in self._store.certificates.values() for it in known.values() if it.token)
        for it in sorted(joins, key=lambda it: it.issued_at, reverse=True):
            if len(found[it.token]) < _MOST_JOINS:
                found[it.token].append(it)
        return found

    def _state_of(self, token: Token) -> str:
        if token.revoked_at:
            return "revoked"
        if token.used >= token.uses:
            return "used up"
        return "ended" if token.ends_at <= self._now() else "open"


def _hash(secret: bytes) -> str:
    return hashlib.sha256(secret).hexdigest()
