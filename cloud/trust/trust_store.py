"""The trust store: tokens, certificates of nodes, and denials, in memory and in the records.

Rules:

* The hub reads from memory. A change that a caller awaits is in the records before it is in memory: if it raises
  `WriteFailed`, memory is as before. Two exceptions count at once, in memory, and are written soon: a denial, and the
  certificates that a hello changes (`put_certificates`).
* The certificates of one node are one record.
* `cloud.trust.tokens`, `generations` and `denials` have the rules for the contents. This module has none.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum

from cloud.records.records import Body, Change, Key, RecordKind, Records
from common.errors import timestamp


class DenialKind(StrEnum):
    """The kinds of denials."""

    NODE = "node"
    SERIAL = "serial"


@dataclass(frozen=True, slots=True)
class Denial:
    """A node, or a certificate, that may not connect."""

    kind: DenialKind
    value: str  # the node's name, or the certificate's serial in lower-case hex
    at: float  # the time of the decision, in seconds since the epoch
    why: str  # the operator's reason; may be empty


@dataclass(frozen=True, slots=True)
class Token:
    """An invitation to join, without its secret."""

    id: str  # random, no secret
    secret_hash: str  # the SHA-256 of its secret, in lower-case hex
    nodes: str  # a node's name, or a pattern of names (`fnmatch`); `*` is every new node
    drivers: tuple[str, ...]  # the drivers that its nodes may report; none: every driver
    made_at: float  # in seconds since the epoch
    ends_at: float  # from then on it is refused
    uses: int  # how many nodes may join with it
    replace: bool  # whether it is for a node that exists, in whose place a machine joins
    used: int = 0
    revoked_at: float = 0.0  # the time at which an operator revoked it, or denied its node; 0 before
    last_use: str = ""  # the certificate that it was used for last (`use_of`); empty before


class CertificateState(StrEnum):
    """The states of a node's certificate."""

    PENDING = "pending"  # issued, and its key has not authenticated yet
    CURRENT = "current"  # its key was the newest one that authenticated
    VOID = "void"  # a later one has authenticated, or has taken its place unused


@dataclass(frozen=True, slots=True)
class Certificate:
    """One generation of a node's certificate."""

    node: str
    generation: int  # 1, 2, 3 … of this node
    key: str  # the fingerprint of its public key
    serial: str  # in lower-case hex
    issued_at: float  # in seconds since the epoch; 0 if this hub did not issue it, or has lost the record
    not_after: float  # its end
    state: CertificateState
    token: str = ""  # the id of the token that it was issued for; empty for a renewal
    pem: str = ""  # the certificate itself, while it may be sent again; else empty, so that the record stays small
    address: str = ""  # where the request for it came from; empty if not known

    @property
    def asked(self) -> str:
        """When it was asked for, and from where, such as `at 2026-11-21T09:12:03Z from 10.0.0.9:7`; may be empty."""
        when = f"at {timestamp(self.issued_at)}" if self.issued_at else ""
        return f"{when} from {self.address}" if when and self.address else when

    def voided(self) -> "Certificate":
        return replace(self, state=CertificateState.VOID, pem="")


Certificates = Mapping[int, Certificate]  # the certificates of one node, by generation


def use_of(node: str, generation: int, key: str) -> str:
    """The use of a token for a certificate with this generation and key. A repeated request has the same one."""
    return f"{node} {generation} {key}"


class TrustStore:
    """All tokens, certificates and denials, in memory."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self.tokens = {it.id: it for it in records.take(RecordKind.TOKEN, _read_token)}
        # By node. A change replaces a node's mapping.
        self.certificates = dict(records.take(RecordKind.CERTIFICATES, _read_certificates))
        self.denials = {
            (it.kind, it.value): it for it in records.take(RecordKind.DENIAL, _read_denial)
        }  # by kind and value
        records.watch(RecordKind.TOKEN, lambda key: _token_record(key[0], self.tokens.get(key[0])))
        records.watch(
            RecordKind.CERTIFICATES, lambda key: _certificates_record(key[0], self.certificates.get(key[0], {}))
        )
        records.watch(
            RecordKind.DENIAL,
            lambda key: _denial_record(key[0], key[1], self.denials.get((DenialKind(key[0]), key[1]))),
        )

    async def save_token(self, token: Token, *, gone: Iterable[str] = ()) -> None:
        """Add or change a token, and remove others (ids). If that raises WriteFailed, nothing has changed."""
        removed = list(gone)
        # Those that nobody needs any more first: then the new one is the last to be written, or is not.
        await self._records.write([*(_token_record(it, None) for it in removed), _token_record(token.id, token)])
        for it in removed:
            self.tokens.pop(it, None)
        self.tokens[token.id] = token

    def put_certificates(self, node: str, known: Certificates) -> None:
        """Change a node's certificates, now in memory and soon in the records."""
        self.certificates[node] = known
        self._records.put(_certificates_record(node, known))

    async def change_certificates(
        self,
        node: str,
        change: Callable[[Certificates], Certificates],
        *,
        used_for: Certificate | None = None,
        then: Sequence[Change] = (),
    ) -> None:
        """Change a node's certificates. If that raises WriteFailed, nothing has changed in memory.

        The token of the new certificate `used_for` counts a use. The changes of `then` are written last.
        """
        while True:
            known = self.certificates.get(node)
            changed = change(known or {})
            # The use first: a hub that dies before the certificate is written has counted it, and the same request
            # gets its certificate (`Token.last_use`). The other way round, somebody else could use it again.
            used = [_token_record(used_for.token, self._used(used_for))] if used_for is not None else []
            await self._records.write([*used, _certificates_record(node, changed), *then])
            if self.certificates.get(node) is known:
                break  # else a hello has put others meanwhile, and the records have those
        self.certificates[node] = changed
        if used_for is not None:
            self.tokens[used_for.token] = self._used(used_for)  # which may have been revoked meanwhile

    def add_denial(self, denial: Denial, revoked: Sequence[str]) -> asyncio.Future[None]:
        """Add a denial, or change its reason, and revoke tokens (ids) with it, now in memory.

        Returns the end of the writing. If that raises WriteFailed, it is tried again.
        """
        self.denials[denial.kind, denial.value] = denial
        self.tokens |= {it: replace(self.tokens[it], revoked_at=denial.at) for it in revoked}
        # The denial first: while it is there, a token that names its node lets nobody join.
        changes = [
            _denial_record(denial.kind, denial.value, denial),
            *(_token_record(it, self.tokens[it]) for it in revoked),
        ]
        for change in changes:  # so that it is tried again; the write tells the operator how the first attempt ended
            self._records.put(change)
        return self._records.write(changes)

    async def remove_denial(self, denial: Denial, change: Callable[[Certificates], Certificates]) -> None:
        """Remove a denial. Change the node's certificates first: without it, those that count would be let in.

        If that raises WriteFailed, nothing has changed in memory.
        """
        key = (denial.kind, denial.value)
        is_removed = False
        removal = _denial_record(*key, None)
        try:
            if denial.kind is DenialKind.NODE and denial.value in self.certificates:
                await self.change_certificates(denial.value, change, then=[removal])
            else:
                await self._records.write([removal])
            is_removed = True
        finally:
            present = self.denials.get(key)
            if is_removed and present is denial:
                del self.denials[key]
            elif present is not None:  # the write may have failed and worked, or come after a new denial
                self._records.put(_denial_record(*key, present))

    def _used(self, made: Certificate) -> Token:
        token = self.tokens[made.token]
        return replace(token, used=token.used + 1, last_use=use_of(made.node, made.generation, made.key))


# -------------------- bodies --------------------


def _body(it: Token | Certificate | Denial, *key: str) -> Body:
    return {name: value for name, value in asdict(it).items() if name not in key}


def _token_record(id_: str, it: Token | None) -> Change:
    return Change(RecordKind.TOKEN, (id_,), _body(it, "id") if it is not None else None)


def _read_token(key: Key, body: Body) -> Token:
    return Token(key[0], **{**body, "drivers": tuple(body["drivers"])})


def _certificates_record(node: str, known: Certificates) -> Change:
    return Change(RecordKind.CERTIFICATES, (node,), {"certificates": [_body(it, "node") for it in known.values()]})


def _read_certificates(key: Key, body: Body) -> tuple[str, Certificates]:
    found = (Certificate(key[0], **{**it, "state": CertificateState(it["state"])}) for it in body["certificates"])
    return key[0], {it.generation: it for it in found}


def _denial_record(kind: str, value: str, it: Denial | None) -> Change:
    return Change(RecordKind.DENIAL, (kind, value), _body(it, "kind", "value") if it is not None else None)


def _read_denial(key: Key, body: Body) -> Denial:
    return Denial(DenialKind(key[0]), key[1], **body)
