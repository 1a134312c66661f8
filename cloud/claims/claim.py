"""A claim: the row of one name, with its calls and its things. Pure.

`book` describes the states. The body of its record has `state`, and `ids` if it has things. If it is open, the body
also has `node` and `since`, and those of `lease_s` and `machine` that are not empty. For example, n1 made vol-1 under
the name `CreateVolume pvc-1`:

    {"state": "made", "ids": [{"kind": "volume", "id": "vol-1", "node": "n1", "since": 1764345600.0}]}
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from cloud.claims.rules import Thing

Place = tuple[str, Thing, str]  # Driver, thing and node


class ClaimState(StrEnum):
    """The state of a claim in the records. They do not tell a running call from one in doubt: both are open."""

    OPEN = "open"
    MADE = "made"
    DELETED = "deleted"


class Mark(StrEnum):
    """The mark of a node in the records. It stands for things whose ids the records do not have."""

    LISTED = "listed"  # the node's lists name ids that no claim has
    # The hub forgot the node although it had things. The mark ends when the node lists again, or when an operator gives
    # the things up.
    FORGOTTEN = "forgotten"


@dataclass(slots=True)
class IdEntry:
    """The entry of one thing at one node."""

    name: str  # the name of its claim; empty: only a list names the thing
    since: float  # when the book first had the thing there, in seconds since the epoch
    deleted_at: float = 0.0  # when the node deleted it, in seconds since the epoch; 0 while it exists

    @property
    def is_made(self) -> bool:
        """Whether the thing exists, and a create made it."""
        return bool(self.name) and not self.deleted_at


@dataclass(slots=True, eq=False)
class Claim:
    """The row of one name."""

    name: str
    node: str = ""  # the node of the open calls; empty: none was open yet
    since: float = 0.0  # when the first open call began, in seconds since the epoch
    # how long the node's agent may run the call without its hub (`Hello.controller_lease_s`). After that, another node
    # may take the call over. 0: no other node may.
    lease_s: int = 0
    # of a driver with an elected node: the instance of the node's agent (`Hello.instance`). Another machine may get the
    # node's name later.
    machine: str = ""
    ids: dict[tuple[Thing, str], IdEntry] = field(default_factory=dict)  # the things, by thing and node
    running: int = 0  # the number of calls that run
    sent: int = 0  # the number of calls that the hub has sent. It numbers them: the first one is 1.
    last_final: int = 0  # the highest number of a call that ended with a final answer
    last_doubtful: int = 0  # the highest number of a call that may have made something that no answer named
    must_record: bool = False  # whether the records have to show that a call is open
    is_confirmed: bool = False  # whether the hub knows that they show it
    has_row: bool = False  # whether the records may have a row of the name

    @property
    def in_doubt(self) -> bool:
        """Whether something may exist that no answer named."""
        return self.last_doubtful > self.last_final

    @property
    def is_open(self) -> bool:
        """Whether a call runs, or is in doubt."""
        return self.running > 0 or self.last_doubtful > self.last_final

    @property
    def made_at(self) -> set[str]:
        return {node for (_, node), entry in self.ids.items() if not entry.deleted_at}

    def doubt(self) -> None:
        """Put the name in doubt."""
        self.sent += 1
        self.last_doubtful = self.sent

    def body(self) -> dict[str, Any] | None:
        """The body of the claim's record; None if the records should have none."""
        ids = []
        state = ClaimState.DELETED
        for (thing, node), entry in self.ids.items():
            told = {"kind": thing.kind, "id": thing.id, "node": node, "since": entry.since}
            if entry.deleted_at:
                told["gone"] = entry.deleted_at
            else:
                state = ClaimState.MADE
            ids.append(told)
        body: dict[str, Any] = {"state": state}
        if self.must_record and self.is_open:
            body |= {"state": ClaimState.OPEN, "node": self.node, "since": self.since}
            if self.lease_s:
                body["lease_s"] = self.lease_s
            if self.machine:
                body["machine"] = self.machine
        elif not ids:
            return None
        if ids:
            body["ids"] = ids
        return body


def read_claim(name: str, body: dict[str, Any]) -> Claim:
    """Read the claim in a record. If its state is open, the claim is in doubt.

    Raises KeyError, TypeError or ValueError.
    """
    node = text_in(body.get("node", ""))
    machine = text_in(body.get("machine", ""))
    claim = Claim(name, node, float(body.get("since", 0)), int(body.get("lease_s", 0)), machine, has_row=True)
    for told in body.get("ids", ()):
        thing = Thing(text_in(told["kind"]), text_in(told["id"]))
        node = text_in(told["node"])
        claim.ids[thing, node] = IdEntry(name, float(told["since"]), float(told.get("gone", 0)))
    if ClaimState(body["state"]) is ClaimState.OPEN:
        claim.doubt()
        claim.must_record = claim.is_confirmed = True
    return claim


def text_in(value: Any) -> str:  # of a record
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


class Attempt:
    """One call under a name.

    Get it from `Book.begin`. Call `send` when the hub sends the call. Give it to `Book.end_attempt`, sent or not.
    """

    __slots__ = ("claim", "number", "unnoted_deletions")

    def __init__(self, claim: Claim, unnoted_deletions: int = 0) -> None:
        self.claim = claim
        self.unnoted_deletions = unnoted_deletions  # `Book.unnoted_deletions` when it began
        self.number = 0  # its number in `Claim.sent`; 0: the hub has not sent it
        claim.running += 1

    def send(self) -> None:
        """Count the call as sent. Call this right before the hub sends it."""
        self.claim.sent += 1
        self.number = self.claim.sent
