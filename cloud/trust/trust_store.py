"""The trust store: tokens, certificates of nodes, and denials, in memory and in `trust.db`.

Rules:

* The file follows the rules of `common.database`, with `full`: a denial that was confirmed outlives a power cut.
* Memory is what the hub asks. A change that a caller awaits is on the disk before it is in memory; if the disk takes
  nothing, the caller gets `WriteFailed` and nothing has changed. `put_certificate` changes memory at once and is
  written soon: a hello is decided without the disk.
* A damaged file stops the hub from starting: without its denials, a stolen node would be admitted again.
* `cloud.trust.tokens`, `generations` and `denials` have the rules for the rows. This module has none.
"""

import json
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Final

from common.database import Schema, connect
from common.database_writer import RETRY_S, DatabaseWriter, Statement
from common.errors import SettingsError, timestamp

SCHEMA: Final = Schema(
    "hub",
    (
        (
            """CREATE TABLE tokens (
                id TEXT PRIMARY KEY, secret_hash BLOB NOT NULL, nodes TEXT NOT NULL, drivers TEXT NOT NULL,
                made_at REAL NOT NULL, ends_at REAL NOT NULL, uses INTEGER NOT NULL, replace INTEGER NOT NULL,
                used INTEGER NOT NULL, revoked_at REAL NOT NULL
            ) STRICT, WITHOUT ROWID""",
            """CREATE TABLE certificates (
                node TEXT NOT NULL, generation INTEGER NOT NULL, key TEXT NOT NULL, serial TEXT NOT NULL,
                issued_at REAL NOT NULL, not_after REAL NOT NULL, state TEXT NOT NULL, token TEXT NOT NULL,
                chain BLOB NOT NULL,
                PRIMARY KEY (node, generation)
            ) STRICT, WITHOUT ROWID""",
            """CREATE TABLE denials (
                kind TEXT NOT NULL, value TEXT NOT NULL, at REAL NOT NULL, why TEXT NOT NULL,
                PRIMARY KEY (kind, value)
            ) STRICT, WITHOUT ROWID""",
        ),
        ("ALTER TABLE certificates ADD COLUMN address TEXT NOT NULL DEFAULT ''",),
    ),
)
"""Of `trust.db`. Lists of drivers are JSON; serials and keys are lower-case hex."""


class DenialKind(StrEnum):
    """The kinds of denials."""

    NODE = "node"
    SERIAL = "serial"


@dataclass(frozen=True, slots=True)
class Denial:
    """A node, or a certificate, that may not connect.

    Attributes:
        kind: says which.
        value: the node's name, or the certificate's serial in lower-case hex.
        at: the time of the decision, in seconds since the epoch.
        why: the operator's reason; may be empty.
    """

    kind: DenialKind
    value: str
    at: float
    why: str


@dataclass(frozen=True, slots=True)
class Token:
    """An invitation to join, without its secret.

    Attributes:
        id: random, no secret.
        secret_hash: the SHA-256 of its secret.
        nodes: a node's name, or a pattern of names (`fnmatch`); `*` is every new node.
        drivers: the drivers that its nodes may report; none: every driver.
        made_at: in seconds since the epoch.
        ends_at: from then on it is refused.
        uses: how many nodes may join with it.
        replace: whether it is for a node that exists, in whose place a machine joins.
        used: how many have.
        revoked_at: the time at which an operator revoked it, or denied its node; 0 before.
    """

    id: str
    secret_hash: bytes
    nodes: str
    drivers: tuple[str, ...]
    made_at: float
    ends_at: float
    uses: int
    replace: bool
    used: int = 0
    revoked_at: float = 0.0


class State(StrEnum):
    """The states of a node's certificate."""

    PENDING = "pending"
    """Issued, and its key has not authenticated yet."""
    CURRENT = "current"
    """Its key was the newest one that authenticated."""
    VOID = "void"
    """A later one has authenticated, or has taken its place unused."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """One generation of a node's certificate.

    Attributes:
        node: the node's name.
        generation: 1, 2, 3 … of this node.
        key: the fingerprint of its public key.
        serial: lower-case hex.
        issued_at: in seconds since the epoch; 0 if this hub did not issue it, or has lost the record.
        not_after: its end.
        state: whether it counts.
        token: the id of the token that it was issued for; empty for a renewal.
        chain: the certificate as PEM with intermediate ones, to answer a repeated request; empty if not known.
        address: where the request for it came from; empty if not known.
    """

    node: str
    generation: int
    key: str
    serial: str
    issued_at: float
    not_after: float
    state: State
    token: str = ""
    chain: bytes = b""
    address: str = ""

    @property
    def asked(self) -> str:
        """When it was asked for, and from where, such as `at 2026-11-21T09:12:03Z from 10.0.0.9:7`; may be empty."""
        when = f"at {timestamp(self.issued_at)}" if self.issued_at else ""
        return f"{when} from {self.address}" if when and self.address else when


_TOKEN: Final = "INSERT OR REPLACE INTO tokens VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S105  # SQL
_CERTIFICATE: Final = "INSERT OR REPLACE INTO certificates VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"


class TrustStore:
    """The rows of `trust.db`, all of them in memory.

    Attributes:
        tokens: by id.
        certificates: by node and generation.
        denials: by kind and value.
    """

    def __init__(self, state_dir: Path, *, retry_s: float = RETRY_S) -> None:
        """Read all rows. The hub's `Store` has locked the directory.

        Raises:
            SettingsError: the file is damaged, a newer hub wrote it, or it cannot be used.
        """
        self._path = state_dir / "trust.db"
        self.tokens: dict[str, Token] = {}
        self.certificates: dict[str, dict[int, Certificate]] = {}
        self.denials: dict[tuple[DenialKind, str], Denial] = {}
        try:
            database = connect(self._path, SCHEMA, check=self._read, full=True).connection
        except (sqlite3.OperationalError, OSError) as error:
            raise SettingsError("--state-dir", str(state_dir), f"{self._path} cannot be used: {error}") from error
        except (sqlite3.Error, ValueError) as error:
            why = (
                f"{self._path} is damaged ({error}), and it has the denials of stolen nodes: put back a copy of it, or "
                f"move it away, and deny those nodes again (csi-bridge deny) as soon as the hub runs"
            )
            raise SettingsError("--state-dir", str(state_dir), why) from error
        self._writer = DatabaseWriter(
            self._path,
            database,
            meanwhile="no node can join, and no certificate is renewed",
            retry_s=retry_s,
        )

    @property
    def trouble(self) -> str:
        """Why writing fails; empty while it works."""
        return self._writer.trouble

    async def close(self) -> None:
        """Finish the writes that wait, then close the file."""
        await self._writer.close()

    # ---- tokens ------------------------------------------------------------------------------------------------------

    async def save_token(self, token: Token) -> None:
        """Add or change a token. If that raises WriteFailed, nothing has changed."""
        await self._writer.commit([_token_row(token)])
        self.tokens[token.id] = token

    async def drop_tokens(self, ids: Iterable[str]) -> None:
        """Remove tokens. If that raises WriteFailed, nothing has changed."""
        gone = list(ids)
        await self._writer.commit([("DELETE FROM tokens WHERE id = ?", (token,)) for token in gone])
        for token in gone:
            self.tokens.pop(token, None)

    # ---- certificates ------------------------------------------------------------------------------------------------

    async def add_certificate(self, certificate: Certificate, *, uses: str = "") -> None:
        """Add a certificate, together with one use of the token (id) for which it was issued.

        Raises:
            WriteFailed: nothing has changed.
        """
        rows = [_certificate_row(certificate)]
        if uses:
            rows.append(("UPDATE tokens SET used = used + 1 WHERE id = ?", (uses,)))
        await self._writer.commit(rows)
        self.certificates.setdefault(certificate.node, {})[certificate.generation] = certificate
        if (token := self.tokens.get(uses)) is not None:  # which may have been revoked meanwhile
            self.tokens[uses] = replace(token, used=token.used + 1)

    def put_certificate(self, certificate: Certificate) -> None:
        """Add or change a certificate, now in memory and soon on the disk."""
        node, generation = certificate.node, certificate.generation
        self.certificates.setdefault(node, {})[generation] = certificate
        self._writer.put(("certificate", node, generation), _certificate_row(certificate))

    def drop_certificate(self, node: str, generation: int) -> None:
        """Remove a certificate, now from memory and soon from the disk."""
        self.certificates[node].pop(generation)
        gone = ("DELETE FROM certificates WHERE node = ? AND generation = ?", (node, generation))
        self._writer.put(("certificate", node, generation), gone)

    # ---- denials -----------------------------------------------------------------------------------------------------

    async def add_denial(self, denial: Denial, revoked: Sequence[str]) -> None:
        """Add a denial, or change its reason, and revoke tokens (ids) with it.

        Raises:
            WriteFailed: nothing has changed.
        """
        row = (denial.kind, denial.value, denial.at, denial.why)
        rows: list[Statement] = [("INSERT OR REPLACE INTO denials VALUES (?, ?, ?, ?)", row)]
        rows += (("UPDATE tokens SET revoked_at = ? WHERE id = ?", (denial.at, token)) for token in revoked)
        await self._writer.commit(rows)
        self.denials[denial.kind, denial.value] = denial
        for token in self.tokens.keys() & revoked:
            self.tokens[token] = replace(self.tokens[token], revoked_at=denial.at)

    async def remove_denial(self, kind: DenialKind, value: str, changed: Sequence[Certificate]) -> None:
        """Remove a denial if there is one, and change certificates with it.

        Raises:
            WriteFailed: nothing has changed.
        """
        removal = ("DELETE FROM denials WHERE kind = ? AND value = ?", (kind, value))
        await self._writer.commit([removal, *map(_certificate_row, changed)])
        self.denials.pop((kind, value), None)
        for certificate in changed:
            self.certificates[certificate.node][certificate.generation] = certificate

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _read(self, database: sqlite3.Connection) -> None:
        for token, secret_hash, nodes, drivers, *times, uses, replaces, used, revoked_at in database.execute(
            "SELECT id, secret_hash, nodes, drivers, made_at, ends_at, uses, replace, used, revoked_at FROM tokens"
        ):
            self.tokens[token] = Token(
                token, secret_hash, nodes, _names(drivers), times[0], times[1], uses, bool(replaces), used, revoked_at
            )
        for node, generation, key, serial, issued_at, not_after, state, token, chain, address in database.execute(
            "SELECT node, generation, key, serial, issued_at, not_after, state, token, chain, address FROM certificates"
        ):
            self.certificates.setdefault(node, {})[generation] = Certificate(
                node, generation, key, serial, issued_at, not_after, State(state), token, chain, address
            )
        for kind, value, at, why in database.execute("SELECT kind, value, at, why FROM denials"):
            self.denials[DenialKind(kind), value] = Denial(DenialKind(kind), value, at, why)


def _token_row(token: Token) -> Statement:
    return _TOKEN, (
        token.id, token.secret_hash, token.nodes, json.dumps(token.drivers), token.made_at, token.ends_at, token.uses,
        token.replace, token.used, token.revoked_at,
    )  # fmt: skip


def _certificate_row(it: Certificate) -> Statement:
    return _CERTIFICATE, (
        it.node, it.generation, it.key, it.serial, it.issued_at, it.not_after, it.state, it.token,
        it.chain, it.address,
    )  # fmt: skip


def _names(text: str) -> tuple[str, ...]:
    found = json.loads(text)
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise ValueError("a row's drivers are no list of names")
    return tuple(found)
