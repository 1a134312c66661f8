"""An identity: the key, certificate and settings that a node has from its join, on disk.

Files of `identity/` in the state directory (mode 0700, keys 0600):

* `node.pem`: the key and its certificate chain, in one file, so that one rename replaces both.
* `ca.crt`: the CAs that sign the hub's certificate.
* `joined.json`: the node's name, and the hub's addresses.
* `next.pem`: the next key and its certificate request. That of a join is `next-….pem`, with a hash of the token's id.
* `lock`: held while the agent, or `edge join`, gets a certificate.

Rules:

* A key is made here, and leaves the directory in no form.
* The next key is on the disk (fsync) before the agent sends its request. If the answer is lost, the agent sends the
  same request again.
* A join makes a key of its own, and the requests of before end with it: whoever had a copy of the directory has none of
  the keys that come now.
* A certificate is on the disk before the agent uses it, and from then on the agent uses no older one: the hub
  refuses a key that a newer one has replaced.
"""

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from common.errors import SettingsError
from common.net.certificate_ends import Term, terms_in
from common.net.endpoint import hub_endpoint
from common.net.enrolment import Issued, Renew
from common.net.tls import TlsFiles
from common.parsers import node_name
from common.store.database import lock
from common.store.fault_points import reach
from common.store.files import replace_file, sync_directory
from common.store.state_file import read_state, write_state
from edge.identity.keys import Asked, AskForRequest, Check, Checked, KeyProcess

FOLDER = "identity"  # the directory in the state directory


@dataclass(frozen=True, slots=True)
class Joined:
    """The settings of a joined agent."""

    node: str
    hubs: tuple[str, ...]  # the hub's addresses, as `--hub` takes them; at least one
    joins: tuple[str, ...]  # the addresses of the hub's join listener


class Identity:
    """The files of one state directory. Everything here blocks, for small files and their fsync."""

    def __init__(
        self, state_dir: Path, answer: Callable[[AskForRequest | Check], Asked | Checked] | None = None
    ) -> None:
        self._answer = answer or KeyProcess().answer
        self._folder = state_dir / FOLDER
        self._joined = self._folder / "joined.json"
        node = self._folder / "node.pem"
        self.files = TlsFiles(self._folder / "ca.crt", node, node)  # the files as TLS uses them

    def joined(self) -> Joined | None:
        try:
            if not self.files.cert.exists():  # the join writes it last
                return None
            return _joined(read_state(self._joined, "edge agent"))
        except (OSError, ValueError, KeyError, TypeError) as error:
            why = (error.strerror if isinstance(error, OSError) else None) or str(error)
            advice = f"{self._joined} cannot be used: {why}; repair it, or join again with a new token"
            raise SettingsError("--state-dir", str(self._folder.parent), advice) from error

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other processes from getting a certificate here meanwhile. Raises BlockingIOError if one is at it."""
        if not self._folder.exists():
            self._make_folder()
        descriptor = lock(self._folder / "lock")
        try:
            yield
        finally:
            os.close(descriptor)

    def term(self) -> Term:
        """The time in which the certificate is valid, counted by this node's clock from the moment of its storing."""
        # A clock that is behind the hub's does not lengthen it: it ends after its life, if its date has not come then.
        own = self.dates()
        stored_at = self.files.cert.stat().st_mtime
        left_s = min(own.ends_at - own.begins_at, own.ends_at - stored_at)
        return Term(stored_at, stored_at + left_s) if left_s > 0 else own

    def dates(self) -> Term:
        return terms_in(self.files.cert.read_bytes())[0]

    def request(self, token: str = "") -> bytes:
        """The certificate request (PKCS#10, DER) of the next key. The next key is made if there is none yet."""
        return self._asked(token, signs=False).request  # of a renewal, if there is no token

    def renewal(self, *, signed: bool) -> Renew:
        """The request for the next certificate, `signed` with the present key for the join listener."""
        asked = self._asked("", signs=signed)
        return Renew(asked.request, asked.certificate, asked.signature)

    def _asked(self, token: str, *, signs: bool) -> Asked:
        path = self._next(token)
        former = _content(path)
        # A present key is not renewed; but a join that was killed after it had stored its certificate asks again.
        asked = self._answer(AskForRequest(former, b"" if token else _content(self.files.cert), signs))
        assert isinstance(asked, Asked)
        if asked.following != former:
            self._make_folder()
            reach("identity.before-request")
            replace_file(path, asked.following, durable=True, mode=0o600)
            reach("identity.after-request")
        return asked

    def store(self, issued: Issued, node: str, *, now: float, host: str = "", token: str = "") -> None:
        """Store the certificate of the next key. After a ValueError nothing has changed.

        `host` is the hub's host that this node can reach, whose addresses come first; empty for that of before.
        """
        reach("identity.before-store")
        path = self._next(token)
        _check_addresses(issued)
        checked = self._answer(Check(path.read_bytes(), node, issued.chain, issued.ca, int(now)))
        assert isinstance(checked, Checked)
        for other in self._folder.glob("next*.pem"):  # before this key is in use: they are of the time before
            if other != path:
                other.unlink()
        replace_file(self.files.ca, issued.ca, durable=True, mode=0o644)
        reach("identity.after-ca")
        host = host or self._host()
        hubs, joins = (
            sorted(told, key=lambda it: hub_endpoint(it).host != host) for told in (issued.hubs, issued.joins)
        )
        settings = {"node": node, "hubs": hubs[:1] if issued.one_hub else hubs, "joins": joins}
        write_state(self._joined, settings, mode=0o600)
        reach("identity.after-settings")
        content = checked.key + issued.chain
        renaming = partial(reach, "identity.before-rename")
        replace_file(self.files.cert, content, durable=True, mode=0o600, reached=renaming)
        reach("identity.after-certificate")
        path.unlink()  # after the rest: it is the proof of a request whose answer was lost
        reach("identity.after-store")

    def _next(self, token: str) -> Path:
        return self._folder / (f"next-{hashlib.sha256(token.encode()).hexdigest()[:16]}.pem" if token else "next.pem")

    def _host(self) -> str:
        former = self.joined()
        return hub_endpoint(former.hubs[0]).host if former is not None else ""

    def _make_folder(self) -> None:
        self._folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self._folder.chmod(0o700)
        sync_directory(self._folder.parent)


def _check_addresses(issued: Issued) -> None:
    if not issued.hubs:
        raise ValueError("the hub told no address")
    for address in issued.hubs + issued.joins:
        if not hub_endpoint(address).tls:
            raise ValueError(f"the hub told the address {address}, which does not begin with wss://")


def _joined(found: dict[str, Any]) -> Joined:
    hubs, joins = (tuple(map(str, found[name])) for name in ("hubs", "joins"))
    if not hubs:
        raise ValueError("it has no hub")
    for address in hubs + joins:
        hub_endpoint(address)
    return Joined(node_name(found["node"]), hubs, joins)


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
