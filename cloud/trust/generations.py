"""The generations of a node's certificate: which one counts, and how a copy of a node's keys is found out.

Rules:

* Each certificate that the hub issues to a node has the next generation of this node. It is pending until its key
  authenticates, and current from then on; the earlier ones are void then. So a lost answer locks no node out: the
  present key counts until the agent has used the next one, and the agent uses it only after it is on its disk.
* A void key that appears is a copy of the node's keys: an agent never goes back. With `OnCopy.LOCK` all certificates of
  the node are refused from then on, and its links end, until an operator decides: `csi-bridge allow NODE`, or a new
  token for this node, with which it joins again. The lock revokes the earlier ones, so that no clock decides whether a
  token is new. With `OnCopy.ALARM` the void key is refused, and the node goes on.
* After `allow`, void keys up to the generation of that copy are refused, and lock the node no more. After a node has
  joined again, so are all earlier ones: the old machine may still run.
* A key that TLS took before the next one authenticated is no copy: the network delayed the hello of the agent's last
  link. It is refused, and nothing is locked. Else whoever can delay packets could lock a node without any key.
* A generation above all that the hub knows becomes the current one: the CA has signed it, so the hub has lost its
  record (it was restored from a backup). Two keys of one generation are a copy.
* A node that has joined is admitted with its generations alone. A certificate without one, from files, is refused.
* Certificates of nodes that have never joined have no generation, and no rules here.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Final, Protocol

from cloud.trust import audit
from cloud.trust.audit import Event
from cloud.trust.trust_store import Certificate, Lock, State, TrustStore
from common.enrolment import generation_of
from common.errors import HandshakeRefused, timestamp
from common.fault_points import reach
from common.messages import Reason

log = logging.getLogger("csi_bridge.hub.generations")

MOST_VOID: Final = 4
"""The newest void certificates of a node are kept for operators. A generation's number tells that it is void."""

MOST_PENDING: Final = 4
"""A node that asks for more certificates without using them loses the oldest of those."""


class OnCopy(StrEnum):
    """The consequence of a copy (`--on-copy`)."""

    LOCK = "lock"
    ALARM = "alarm"


class Shown(Protocol):
    """A certificate that a peer has proved to hold the key of. `common.peer.Peer` is one."""

    @property
    def address(self) -> str:
        """The peer's address, for logs."""

    @property
    def uris(self) -> tuple[str, ...]:
        """Its URIs."""

    @property
    def serial(self) -> int:
        """Its serial number."""

    @property
    def key(self) -> str:
        """The fingerprint of its key."""

    @property
    def not_after(self) -> float:
        """Its end, in seconds since the epoch."""

    @property
    def proved_at(self) -> float:
        """When it proved the key, in seconds of the monotonic clock; infinity for now."""


class Generations:
    """Judges the certificates of nodes, and keeps their generations in the trust store.

    Attributes:
        on_locked: called with a node and a sentence when the node is locked: its links must end.
    """

    def __init__(
        self,
        store: TrustStore,
        *,
        on_copy: OnCopy,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """For one hub.

        Args:
            store: keeps certificates and locks.
            on_copy: the consequence of a copy.
            now: the time, in seconds since the epoch.
            monotonic: the clock of the moments at which keys authenticate, in seconds.
        """
        self._store, self._on_copy, self._now, self._monotonic = store, on_copy, now, monotonic
        self._changed_at: dict[str, float] = {}
        """By node: when its current key authenticated, in seconds of the monotonic clock. A link from before this hub
        started does not exist, so nothing of it is stored."""
        self._alarms: dict[str, tuple[str, str]] = {}
        """By node: the serial of the last copy that did not lock it, and a sentence about it."""
        self._announced: dict[str, tuple[str, str]] = {}
        """By node: the key of its link, and the key that its agent will show next."""
        self.on_locked: Callable[[str, str], None] = lambda _node, _why: None

    # ---- certificates that appear ------------------------------------------------------------------------------------

    def examine(self, node: str, shown: Shown) -> None:
        """Check that a node's certificate counts. Call it before the node is admitted.

        Raises:
            HandshakeRefused: it does not; a copy has been noted.
        """
        generation = _generation(shown)
        lock = self._store.locks.get(node)
        if lock is not None and lock.locked_at and not self._is_after(lock, generation):
            raise HandshakeRefused(Reason.DENIED, _locked(lock))
        if not self.counts(node, shown):
            if not generation:
                raise HandshakeRefused(
                    Reason.CERTIFICATE,
                    f"edge node {node} has joined, and this certificate has no generation: an agent that has joined "
                    f"uses the certificate that the hub issued; join again to replace it",
                )
            if shown.proved_at < self._changed_at.get(node, 0.0):
                raise HandshakeRefused(Reason.DENIED, _replaced(node))
            raise HandshakeRefused(Reason.DENIED, self._note_copy(node, generation, shown))

    def counts(self, node: str, shown: Shown) -> bool:
        """Whether a certificate is current, pending, above all known ones, or of a node that never joined.

        Raises:
            HandshakeRefused: its generation cannot be read.
        """
        known, generation = self._store.certificates.get(node, {}), _generation(shown)
        if not generation:
            return not _current(known)
        found = known.get(generation)
        if found is None:
            return generation > max(known, default=0)
        return found.key == shown.key and found.state is not State.VOID and generation >= _current(known)

    def authenticated(self, node: str, shown: Shown) -> None:
        """Note that a node was admitted with a certificate that counts: it is current, and earlier ones are void."""
        generation = _generation(shown)
        known = self._store.certificates.get(node, {})
        found = known.get(generation)
        if not generation or (found is not None and found.state is State.CURRENT):
            return
        if found is None:
            self._adopt(node, generation, shown)
            found = self._store.certificates[node][generation]
        reach("generations.before-use")
        self._store.put_certificate(replace(found, state=State.CURRENT))
        self._changed_at[node] = self._monotonic()
        for earlier in [it for it in known.values() if it.generation < generation and it.state is not State.VOID]:
            self._store.put_certificate(replace(earlier, state=State.VOID, chain=b""))
        self._drop_void(node)
        reach("generations.after-use")
        if found.token:
            self._settle_before(node, generation)
        self._alarms.pop(node, None)
        log.info("generation %d of the certificate of node %s is in use", generation, node)
        audit.add(Event.RENEWAL, who=node, address=shown.address, generation=generation, in_use="yes")

    def announce(self, node: str, live: str, key: str) -> None:
        """Note the key that an agent, whose certificates come from files, will show after the key of its link."""
        self._announced[node] = live, key

    def follows(self, node: str, live: str, key: str) -> bool:
        """Whether a node that is connected with the key `live` may show `key`: the same, announced, or renewed."""
        found = self.issued_to(node, key)
        renewed = found is not None and not found.token
        return key == live or self._announced.get(node) == (live, key) or renewed

    # ---- certificates to issue ---------------------------------------------------------------------------------------

    def adopt(self, node: str, shown: Shown) -> None:
        """Note a certificate above all known ones, whose key has signed a request for the next one."""
        generation = _generation(shown)
        if generation > max(self._store.certificates.get(node, {}), default=0):
            self._adopt(node, generation, shown)

    def is_repeat(self, node: str, key: str) -> bool:
        """Whether the hub has answered a request for this key, and the node uses the answer."""
        found = self.issued_to(node, key)
        return found is not None and found.state is State.CURRENT

    def next_of(self, node: str) -> int:
        """The generation of the next certificate of a node."""
        return max(self._store.certificates.get(node, {}), default=0) + 1

    def issued_to(self, node: str, key: str) -> Certificate | None:
        """The certificate that was issued for a key, and has not been void since."""
        found = self._store.certificates.get(node, {}).values()
        return next((it for it in found if it.key == key and it.state is not State.VOID), None)

    def outlived_by(self, serial: str) -> str:
        """The node that has a certificate after the one with this serial number, and may use it; empty: none."""
        for node, known in self._store.certificates.items():
            found = next((it.generation for it in known.values() if it.serial == serial), 0)
            if found and any(it.generation > found and it.state is not State.VOID for it in known.values()):
                return node
        return ""

    def has_joined(self, node: str) -> bool:
        """Whether the hub has issued a certificate to a node."""
        return node in self._store.certificates

    def limit_pending(self, node: str) -> None:
        """Void the oldest certificates that a node asked for and does not use."""
        pending = sorted(
            (it for it in self._store.certificates.get(node, {}).values() if it.state is State.PENDING),
            key=lambda it: it.generation,
        )
        for unused in pending[:-MOST_PENDING]:
            self._store.put_certificate(replace(unused, state=State.VOID, chain=b""))
        self._drop_void(node)

    # ---- copies ------------------------------------------------------------------------------------------------------

    def locked(self, node: str) -> Lock | None:
        """The lock of a node; None if it is not locked."""
        lock = self._store.locks.get(node)
        return lock if lock is not None and lock.locked_at else None

    async def allow(self, node: str) -> bool:
        """Unlock a node, at an operator's word. Returns whether it was locked, or has an alarm.

        Raises:
            WriteFailed: nothing has changed.
        """
        lock = self.locked(node)
        if lock is not None:
            await self._store.save_lock(replace(lock, locked_at=0.0, upto=0))
        return self._alarms.pop(node, None) is not None or lock is not None

    def problems(self) -> Iterable[str]:
        """Sentences about copies, for operators."""
        yield from (_locked(lock) for lock in self._store.locks.values() if lock.locked_at)
        yield from (why for _, why in self._alarms.values())

    def _is_after(self, lock: Lock, generation: int) -> bool:
        """Whether a generation comes from a token that was used after a lock. A renewal may have been under way."""
        found = self._store.certificates.get(lock.node, {}).get(generation)
        return generation > lock.upto and found is not None and bool(found.token)

    def _note_copy(self, node: str, generation: int, shown: Shown) -> str:
        """Note that a void key of a node appeared. Returns the reason of its refusal."""
        newest = max(self._store.certificates.get(node, {}), default=0)
        settled = lock.settled if (lock := self._store.locks.get(node)) is not None else 0
        locks = self._on_copy is OnCopy.LOCK and generation > settled
        serial = f"{shown.serial:x}"
        why = (
            f"a certificate of edge node {node} that was replaced appeared again at {timestamp(self._now())} from "
            f"{shown.address} (generation {generation} of {newest}, serial {serial}): somebody has a copy of its keys"
        )
        audit.add(
            Event.COPY, who=node, address=shown.address, generation=generation, newest=newest, serial=serial,
            locked="yes" if locks else "no",
        )  # fmt: skip
        if not locks:
            if self._alarms.get(node, ("", ""))[0] != serial:
                log.warning("%s; it is refused, and the node goes on", why)
            self._alarms[node] = serial, why
            return _replaced(node)
        for token in [it.id for it in self._store.tokens.values() if it.nodes == node and not it.revoked_at]:
            self._store.revoke_token(token, self._now())
        new = Lock(node, self._now(), upto=max(newest, generation), settled=max(settled, generation), why=why)
        self._store.put_lock(new)
        log.error("%s", _locked(new))
        self.on_locked(node, _locked(new))
        return _locked(new)

    def _settle_before(self, node: str, generation: int) -> None:
        """Unlock a node that has joined with an operator's token. No earlier certificate locks it again."""
        if generation > 1:
            self._store.put_lock(Lock(node, locked_at=0.0, upto=0, settled=generation - 1, why=""))

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _adopt(self, node: str, generation: int, shown: Shown) -> None:
        log.warning(
            "node %s has generation %d of its certificate, which this hub has no record of; it is taken over",
            node,
            generation,
        )
        self._store.put_certificate(
            Certificate(
                node,
                generation,
                shown.key,
                f"{shown.serial:x}",
                issued_at=0.0,
                not_after=shown.not_after,
                state=State.PENDING,
            )
        )

    def _drop_void(self, node: str) -> None:
        known = self._store.certificates.get(node, {})
        void = sorted(generation for generation, it in known.items() if it.state is State.VOID)
        for generation in void[:-MOST_VOID]:
            self._store.drop_certificate(node, generation)


def _current(known: Mapping[int, Certificate]) -> int:
    """The newest generation whose key has authenticated; 0 if there is none."""
    return max((generation for generation, it in known.items() if it.state is State.CURRENT), default=0)


def _generation(shown: Shown) -> int:
    try:
        return generation_of(shown.uris)
    except ValueError as error:
        raise HandshakeRefused(Reason.CERTIFICATE, str(error)) from error


def _replaced(node: str) -> str:
    return f"this certificate was replaced by a later one of edge node {node}; join again with a new token"


def _locked(lock: Lock) -> str:
    return (
        f"edge node {lock.node} is locked: {lock.why}; find out which machine is the node, then run csi-bridge token "
        f"create --node {lock.node} and let it join again, or csi-bridge allow {lock.node} if the newest certificate "
        f"is the node's"
    )
