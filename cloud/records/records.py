"""The interface of the records: the knowledge of a hub that must outlive its process.

A record is a JSON object under a kind and a key. The hub itself reads from memory: the owner of a kind reads all its
records once, when the hub starts, and writes each change through.

Rules:

* A change has the whole record. It takes its place among all changes in the moment in which it is given, so of two
  changes of one record the later one is the truth.
* `write` makes one attempt, and its caller waits. It replaces waiting `put`s of the same records. It goes on if its
  caller leaves.
* `put` returns at once, and is retried until it works. The hub may end first: a change that it must not forget is a
  `write`.
* A record that its owner cannot read stops the hub from starting: nobody knows which knowledge would be missing.
* All records of a node stand in one object of the cluster, and etcd takes 1.5 MiB. So each owner bounds its own.
"""

import asyncio
import json
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from common.errors import CallError, SettingsError, order_refused
from common.store.database_writer import WriteFailed

Key = tuple[str, ...]
Body = dict[str, Any]
T = TypeVar("T")

CLUSTER: Final = "the records in the cluster"  # their name in messages; that of a file is its path


class RecordKind(StrEnum):
    """The kinds of records. Each belongs to one module, which describes its keys and bodies."""

    CLAIM = "claim"  # `cloud.claims.claims`
    ELECTION = "election"  # `cloud.claims.claims`
    NODE = "node"  # `cloud.nodes.node_records`
    SEGMENTS = "segments"  # `cloud.nodes.unique_segments`
    OFFER = "offer"  # `cloud.nodes.offers`
    FENCE = "fence"  # `cloud.detach.fences`
    TOKEN = "token"  # noqa: S105  # a word  # `cloud.trust.trust_store`
    CERTIFICATES = "certificates"  # `cloud.trust.trust_store`
    DENIAL = "denial"  # `cloud.trust.trust_store`
    FACT = "fact"  # `cloud.sync.fact_table`
    MACHINE = "machine"  # `cloud.sync.fact_table`
    MARK = "mark"  # `cloud.leadership.incarnation`


class Change(NamedTuple):
    """A record as it is from now on. Without a body, there is none."""

    kind: RecordKind
    key: Key
    body: Body | None


Now = Callable[[Key], Change]  # the owner of a kind: returns the change that makes a record what it is in memory

# The owner of a kind takes a record that memory lacks. It returns False if something else in memory has its key.
Adopt = Callable[[Key, Body], bool]


class Records(Protocol):
    """The records of one hub."""

    @property
    def trouble(self) -> str:
        """Why writing fails; empty while it works."""

    def take(self, kind: RecordKind, read: Callable[[Key, Body], T]) -> list[T]:
        """All records of a kind, as they were when the hub began, each as `read` returns it.

        Only the first call gets them.

        Raises:
            SettingsError: `read` has raised KeyError, TypeError or ValueError.
        """

    def watch(self, kind: RecordKind, now: Now, adopt: Adopt | None = None) -> None:
        """Write memory's state again whenever somebody else changes or deletes a record of a kind.

        `adopt` takes one that a hub before this one has written late. Without it, such a record counts for nothing, and
        that of a node goes.
        """

    def write(self, changes: Iterable[Change]) -> asyncio.Future[None]:
        """Write changes in their order. Returns the end of the attempt, after which a next hub will have seen them.

        The end raises `common.store.database_writer.WriteFailed` if none, or only the first few, are written.
        """

    def put(self, change: Change) -> None:
        """Write a change soon. It replaces a waiting `put` of the same record."""

    async def still_leads(self) -> None:
        """Make sure that no other hub leads yet. Raises WriteFailed if one may.

        The clocks of a hub whose machine stood still do not tell it that its term is over.
        """

    async def close(self) -> None:
        """Make one more attempt at the waiting writes, and end."""


def read_all(
    found: Iterable[tuple[Key, Body]], read: Callable[[Key, Body], T], *, kind: RecordKind, place: str
) -> list[T]:
    """Read records as `Records.take` does. `place` is where they are, for the message."""
    result = []
    for key, body in found:
        try:
            result.append(read(key, body))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise damaged(place, f"the {kind} {' '.join(key)} cannot be read: {error!r}") from error
    return result


def stored_bytes(value: Any) -> int:
    """The most bytes that a value takes in an object of a cluster: the API server writes `<`, `>` and `&` with six."""
    text = json.dumps(value, separators=(",", ":"))
    return len(text) + 5 * sum(map(text.count, "<>&"))


def not_durable(what: str, error: WriteFailed) -> CallError:
    """The refusal of an order that counts in memory, and is not in the records yet. `put` has it, too."""
    return order_refused(
        f"{what}, and not yet durably",
        f"{error}; the hub tries again, and loses it if it stops before: make room there, until csi-bridge status no "
        f"longer says NOT WRITTEN",
    )


def damaged(place: str, why: str) -> SettingsError:
    """The error of records that cannot be read. `place` is a file, or `CLUSTER`."""
    return SettingsError(
        "--kubeconfig" if place == CLUSTER else "--state-dir",
        place,
        f"is damaged: {why}; put back a copy of it. Without one, remove it: then the hub starts without it "
        f"(docs/recovery.md#after-a-crash-a-reboot-or-a-loss)",
    )
