"""The audit log: the admissions, joins, refusals and orders, each with its time, its peer and the peer's address.

Rules:

* `add` returns at once. One thread makes the lines and writes them to the disk, in the order of the calls. A line that
  comes alone is written at once; of a burst, all lines of `_PAUSE_S` are one write.
* No error of the disk reaches the caller. The hub logs the first one, keeps the newest lines in memory, and tries
  again. Lines that it must drop are counted in its log and in the audit log.
* A peer cannot push the rest out of the log: of an event that peers cause, each peer has `_BURST` lines at once and
  one a minute after that. A later line of the peer says how many were left out. Orders of operators are never left out.
* A line holds names, addresses and reasons, but no secret.
"""

import json
import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from cloud.trust.audit_file import AuditFile
from common.token_bucket import Bucket

log = logging.getLogger("csi_bridge.hub.audit")


class Event(StrEnum):
    """An event of the audit log: the word in the field `event` of its line. A closed set."""

    START = "start"
    """The hub started."""
    ADMISSION = "admission"
    """An edge agent, a proxy driver or an operator was admitted."""
    TAKEOVER = "takeover"
    """A later link of a node replaced the earlier one."""
    CONFLICT = "conflict"
    """A second machine claimed the name of a connected node, or a second node something that belongs to one node."""
    REFUSAL = "refusal"
    """A peer, a stream of it or a call was refused."""
    EXPIRY = "expiry"
    """A link ended because its certificate did."""
    TOKEN = "token"  # noqa: S105  # the word of an event
    """An operator made or revoked a join token."""
    JOIN = "join"
    """A node showed a token and got a certificate."""
    RENEWAL = "renewal"
    """A node got its next certificate, or its next key authenticated for the first time."""
    COPY = "copy"
    """A key that is void by a renewal appeared again."""
    DENIAL = "denial"
    """An operator or a revocation list denied a node or a certificate."""
    ALLOWANCE = "allowance"
    """An operator allowed a node or a certificate again."""
    FENCE = "fence"
    """An operator took a node for dead or took that back, or such a node is back."""
    ORDER = "order"
    """An operator gave another order, such as `forget`, `trust` or a call by hand."""
    POLICY = "policy"
    """The hub read another policy, or kept the last good one."""
    REPORT = "report"
    """A node's report of a driver was refused, or is no longer refused."""
    CERTIFICATES = "certificates"
    """The hub read another CA, certificate or revocation list."""
    OMISSION = "omission"
    """Lines are absent here: `lines` is their number."""


_BY_PEERS: Final = frozenset(
    {
        Event.ADMISSION,
        Event.TAKEOVER,
        Event.CONFLICT,
        Event.REFUSAL,
        Event.EXPIRY,
        Event.RENEWAL,
        Event.COPY,
        Event.REPORT,
    }
)
"""The events that a peer can cause as often as it likes."""

_BURST: Final = 20
"""The lines of one event that a peer may cause at once: twenty reconnects of a bad network are all there."""

_REFILL_S: Final = 60.0
"""The time in which it gets one more: 60 lines an hour, 15 KB."""

_MOST_PEERS: Final = 20_000
"""The pairs of event and peer that are counted, as many as `--max-nodes` has nodes by default: 6 MB of memory."""

_MOST_WAITING: Final = 10_000
"""The lines that are kept while the disk takes none: one for each agent of a large fleet that redials."""

_BATCH: Final = 500
"""The lines of one write. They fit into a file of 1 MiB, which is the smallest."""

_PAUSE_S: Final = 0.1
"""Between two writes. Each costs the disk a flush, and the hub as much time as the admission of an agent."""

_RETRY_S: Final = 5.0

_LONGEST_CHARS, _MOST_ITEMS = 500, 50
"""A text of a peer, and a list, are cut here."""


class Audit(Protocol):
    """Takes the events of the audit log."""

    @property
    def trouble(self) -> str:
        """Why the disk does not take the newest lines; empty if it does. For operators."""

    def add(self, event: Event, *, who: str, address: str = "", **details: str | int | list[str]) -> None:
        """Note an event. Returns at once, and raises nothing.

        Args:
            event: the event.
            who: the name that the peer has proved, or that it claims if it has proved none; or the operator.
            address: where it connected from; for an operator its user id.
            details: further fields of the line, such as the node that an order names.
        """


_Fields = dict[str, str | int | list[str]]


class _Entry(NamedTuple):
    """A line that waits: its time in seconds since the epoch, its event, and its other fields, cut to their size."""

    at: float
    event: Event
    fields: _Fields


_encode = json.JSONEncoder(separators=(",", ":")).encode


@dataclass(slots=True)
class _Allowance(Bucket):
    """The lines of one event that a peer may still cause.

    Attributes:
        left_out: the lines that were left out since the last one that was written.
    """

    left_out: int = 0


class AuditLog:
    """The audit log of one hub (`Audit`)."""

    def __init__(
        self,
        state_dir: Path,
        *,
        largest_bytes: int,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start the thread that writes.

        Args:
            state_dir: the hub's state directory.
            largest_bytes: the size of all files of the log together.
            now: the time of each line, in seconds since the epoch.
            monotonic: the clock of the limit for peers, in seconds.
        """
        self._file = AuditFile(state_dir, largest_bytes=largest_bytes)
        self._now, self._monotonic = now, monotonic
        self._peers: OrderedDict[tuple[Event, str], _Allowance] = OrderedDict()
        self._changed = threading.Condition()
        self._waiting: deque[_Entry] = deque()
        self._dropped = 0
        self._trouble = ""
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="audit-log", daemon=True)
        self._thread.start()

    @property
    def trouble(self) -> str:
        """Why the disk does not take the newest lines; empty if it does. For operators."""
        return self._trouble

    def add(self, event: Event, *, who: str, address: str = "", **details: str | int | list[str]) -> None:
        """Note an event (`Audit.add`)."""
        if event in _BY_PEERS:
            left_out = self._take(event, who[:_LONGEST_CHARS])
            if left_out is None:
                return
            if left_out:
                details["left_out"] = left_out
        self._put(event, {"who": who, "address": address, **details})

    def close(self) -> None:
        """Write all lines, if the disk takes them, and stop the thread."""
        for (event, who), allowance in self._peers.items():
            self._tell_left_out(event, who, allowance)
        self._peers.clear()
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    # ---- the caller's side -------------------------------------------------------------------------------------------

    def _take(self, event: Event, who: str) -> int | None:
        """Count a line of a peer. Returns the lines left out since its last one, or None to leave this one out, too."""
        now = self._monotonic()
        found = self._peers.setdefault((event, who), _Allowance(1 / _REFILL_S, _BURST, now))
        self._peers.move_to_end((event, who))
        if len(self._peers) > _MOST_PEERS:
            self._tell_left_out(*(oldest := next(iter(self._peers))), self._peers.pop(oldest))
        if not found.take(now):
            found.left_out += 1
            return None
        left_out, found.left_out = found.left_out, 0
        return left_out

    def _tell_left_out(self, event: Event, who: str, allowance: _Allowance) -> None:
        if allowance.left_out:
            self._put(Event.OMISSION, {"who": who, "of": event, "lines": allowance.left_out})

    def _put(self, event: Event, fields: _Fields) -> None:
        line = _Entry(self._now(), event, {name: _cut(value) for name, value in fields.items() if value != ""})
        with self._changed:
            if len(self._waiting) >= _MOST_WAITING:
                self._waiting.popleft()
                self._dropped += 1
            self._waiting.append(line)
            if len(self._waiting) == 1:
                self._changed.notify()

    # ---- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._closing:
                    self._changed.wait()
                if not self._waiting:
                    return
                lines = [self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))]
                dropped, self._dropped = self._dropped, 0
            if self._write(lines, dropped):
                self._pause()
            elif not self._wait_to_retry():
                return

    def _write(self, lines: list[_Entry], dropped: int) -> bool:
        """Write lines. Returns False if the disk does not take them; they wait again then."""
        head = [_Entry(self._now(), Event.OMISSION, {"who": "hub", "lines": dropped})] if dropped else []
        try:
            self._file.append(b"".join(map(_line, [*head, *lines])))
        except OSError as error:
            if not self._trouble:
                log.error("cannot write the audit log %s; the hub tries again: %s", self._file.path, error)  # noqa: TRY400  # the sentence says it all
            self._trouble = str(error)
            with self._changed:
                self._waiting.extendleft(reversed(lines))
                more = max(0, len(self._waiting) - _MOST_WAITING)
                for _ in range(more):
                    self._waiting.popleft()
                self._dropped += dropped + more
            return False
        if self._trouble:
            log.info("the audit log is written again; lines that were dropped: %d", dropped)
            self._trouble = ""
        return True

    def _pause(self) -> None:
        """Let lines gather, unless the hub stops."""
        with self._changed:
            self._changed.wait_for(lambda: self._closing, timeout=_PAUSE_S)

    def _wait_to_retry(self) -> bool:
        """Wait. Returns False if the hub stops instead: the lines are lost then."""
        with self._changed:
            self._changed.wait_for(lambda: self._closing, timeout=_RETRY_S)
            if self._closing:
                log.error("lines of the audit log that are lost: %d", len(self._waiting) + self._dropped)
            return not self._closing


def _line(entry: _Entry) -> bytes:
    at = datetime.fromtimestamp(entry.at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return _encode({"ts": at, "event": entry.event} | entry.fields).encode() + b"\n"


def _cut(value: str | int | list[str]) -> str | int | list[str]:
    if isinstance(value, str):
        return value[:_LONGEST_CHARS]
    return value if isinstance(value, int) else [item[:_LONGEST_CHARS] for item in value[:_MOST_ITEMS]]
