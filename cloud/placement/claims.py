"""A claim: which node holds the name of a create, and until when. Pure.

Rules:

* A name stays with its node while a call under it is under way, while something may have been made under it that no
  answer told of (RULE A9), and as long as something is there that was made under it.
* A final word tells of every call that was sent before the one it answers: that was for the same node and name. A call
  that was sent after it may have begun when that word had been said, however late the word is heard.
"""

from dataclasses import dataclass, field

from cloud.placement.requests import Thing


@dataclass(slots=True, eq=False)
class Claim:
    """One name of one driver.

    Attributes:
        driver: the driver.
        name: method and name of the create.
        node: the node that holds it.
        attempts: calls that are under way.
        sent: how many calls were sent: each has the number that this was then.
        certain: the highest number of a call that ended with a final word.
        doubtful: the highest number of a call that may have made something that no answer told of.
        made: what answers told, and is there.
        is_tried: whether the disk was told of it, which it needs as long as anything is under way or in doubt.
        is_kept: whether the disk has it for certain.
    """

    driver: str
    name: str
    node: str
    attempts: int = 0
    sent: int = 0
    certain: int = 0
    doubtful: int = 0
    made: set[Thing] = field(default_factory=set)
    is_tried: bool = False
    is_kept: bool = False

    @property
    def key(self) -> tuple[str, str]:
        """Driver and name."""
        return self.driver, self.name

    @property
    def in_doubt(self) -> bool:
        """Whether something may have been made that no answer told of."""
        return self.doubtful > self.certain

    @property
    def is_settled(self) -> bool:
        """Whether all that was made is known, and no call is under way."""
        return not (self.attempts or self.in_doubt)


class Attempt:
    """One call under a name. Begin it by making it, then `send` it or not, and `end` it."""

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        self._number = 0
        claim.attempts += 1

    def send(self) -> None:
        """It is sent now."""
        self.claim.sent += 1
        self._number = self.claim.sent

    def end(self, *, in_doubt: bool | None) -> None:
        """It has ended.

        Args:
            in_doubt: whether it may have made something that no answer told of; None: it made nothing, and says nothing
                of the calls before it, because it was not sent, or was refused for the place that it asked for.
        """
        self.claim.attempts -= 1
        if in_doubt:
            self.claim.doubtful = max(self.claim.doubtful, self._number)
        elif in_doubt is not None:
            self.claim.certain = max(self.claim.certain, self._number)
