"""A claim: the row of one name, the things in it, and the calls under it; and its record. Pure.

`book` describes its states in memory and in the records. The body of a record has `state`, and those of `node`,
`since`, `lease_s`, `machine` and `ids` that are not empty.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from cloud.claims.rules import Thing

Place = tuple[str, Thing, str]  # Driver, thing and node


class ClaimState(StrEnum):
    """The state of a claim's row. In the records, a call that runs and one in doubt are the same."""

    OPEN = "open"
    MADE = "made"
    DELETED = "deleted"


class Mark(StrEnum):
    """The mark of a node in the records. They have no ids of its lists: the hub asks the node again."""

    LISTED = "listed"  # its lists tell ids that no claim has
    # The hub forgot the node, which had things. It ends when the node lists again, or when they are given up.
    FORGOTTEN = "forgotten"


@dataclass(slots=True)
class Id:
    """A thing at a node."""

    name: str  # the name of its claim; empty: only a list tells the thing
    since: float  # when the book first had the thing there, in seconds since the epoch
    gone: float = 0.0  # when it was deleted, in seconds since the epoch; 0 while it exists

    @property
    def is_made(self) -> bool:
        """Whether the thing exists, and a create made it."""
        return bool(self.name) and not self.gone


@dataclass(slots=True, eq=False)
class Claim:
    """The row of one name."""

    name: str
    node: str = ""  # the node of the open calls; empty: none was open yet
    since: float = 0.0  # when the first of them began, in seconds since the epoch
    # how long the node's agent may go on with the call without its hub (`Hello.controller_lease_s`), if another node
    # may take the call over after that; 0: none may.
    lease_s: int = 0
    # of a driver with an elected node, the instance of the node's agent (`Hello.instance`): another machine may have
    # the node's name later.
    machine: str = ""
    ids: dict[tuple[Thing, str], Id] = field(default_factory=dict)  # the things, by thing and node
    running: int = 0  # how many calls run
    sent: int = 0  # how many were sent. Each one's number is the value of this when it was sent.
    certain: int = 0  # the highest number of a call that ended with a final answer
    doubtful: int = 0  # the highest number of a call that may have made something that no answer named
    is_kept: bool = False  # whether the records have to show that a call is open
    is_confirmed: bool = False  # whether they are known to show it
    has_row: bool = False  # whether the records may have a row of the name

    @property
    def in_doubt(self) -> bool:
        """Whether something may exist that no answer named."""
        return self.doubtful > self.certain

    @property
    def is_open(self) -> bool:
        """Whether a call runs, or is in doubt."""
        return self.running > 0 or self.doubtful > self.certain

    @property
    def made_at(self) -> set[str]:
        return {node for (_, node), its in self.ids.items() if not its.gone}

    def doubt(self) -> None:
        """Put the name in doubt, also if its outcome was certain."""
        self.sent += 1
        self.doubtful = self.sent

    def body(self) -> dict[str, Any] | None:
        """The body of the record that there should be; None: none."""
        ids = []
        state = ClaimState.DELETED
        for (thing, node), its in self.ids.items():
            told = {"kind": thing.kind, "id": thing.id, "node": node, "since": its.since}
            if its.gone:
                told["gone"] = its.gone
            else:
                state = ClaimState.MADE
            ids.append(told)
        body: dict[str, Any] = {"state": state}
        if self.is_kept and self.is_open:
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
    """The claim that a record has; its open call is in doubt.

    Raises KeyError, TypeError or ValueError if it cannot be read.
    """
    node = text_in(body.get("node", ""))
    machine = text_in(body.get("machine", ""))
    claim = Claim(name, node, float(body.get("since", 0)), int(body.get("lease_s", 0)), machine, has_row=True)
    for told in body.get("ids", ()):
        thing = Thing(text_in(told["kind"]), text_in(told["id"]))
        node = text_in(told["node"])
        claim.ids[thing, node] = Id(name, float(told["since"]), float(told.get("gone", 0)))
    if ClaimState(body["state"]) is ClaimState.OPEN:
        claim.doubt()
        claim.is_kept = claim.is_confirmed = True
    return claim


def text_in(value: Any) -> str:  # of a record
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


class Attempt:
    """One call under a name.

    Get it from `Book.begin`, `send` it unless something prevents that, and give it to `Book.end_attempt`.
    """

    __slots__ = ("claim", "deletions", "number")

    def __init__(self, claim: Claim, deletions: int = 0) -> None:
        self.claim, self.deletions = claim, deletions  # `Book.deletions` when it began
        self.number = 0  # as `Claim.sent`; 0: it was not sent
        claim.running += 1

    def send(self) -> None:
        """Count it as sent. Call this right before the hub sends it."""
        self.claim.sent += 1
        self.number = self.claim.sent
