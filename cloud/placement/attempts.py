"""An attempt: one create of this hub under a name. Its end decides whether the name stays with the node. Pure.

Rules:

* A name stays with its node while a create under it runs, and while one may have made something that no answer named
  (docs/csi-contract.md#a-name-stays-with-its-node).
* A final answer also settles every create that this hub sent before the answered one: they were for the same node and
  name. It settles no create that was sent later: the vendor may begin that one after it has decided on its answer.
"""

from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class OpenName:
    """One name of one driver with creates of this hub that run.

    Attributes:
        driver: the driver.
        name: method and name of the create.
        node: the node of these creates.
        attempts: how many run.
        sent: how many were sent. Each one's number is the value of this when it was sent.
        certain: the highest number of a create that ended with a final answer.
        doubtful: the highest number of a create that may have made something that no answer named.
        is_held: whether the claim store has this hub's hold on the name, or gets it later (`ClaimStore.hold_later`).
        is_confirmed: whether the store has confirmed the hold to one of these creates.
        claims: how many claims the store may have written; it is set back when the hold ends.
        is_shared: whether another hub held the name as well when the first of these creates began.
    """

    driver: str
    name: str
    node: str
    attempts: int = 0
    sent: int = 0
    certain: int = 0
    doubtful: int = 0
    is_held: bool = False
    is_confirmed: bool = False
    claims: int = 0
    is_shared: bool = False

    @property
    def key(self) -> tuple[str, str]:
        """Driver and name."""
        return self.driver, self.name

    @property
    def in_doubt(self) -> bool:
        """Whether something may exist that no answer named."""
        return self.doubtful > self.certain

    @property
    def is_settled(self) -> bool:
        """Whether this hub knows everything that its creates made, and none runs."""
        return not (self.attempts or self.in_doubt)


class Attempt:
    """One create under a name. Make it, `send` it unless something prevents that, and `end` it."""

    def __init__(self, name: OpenName) -> None:
        self.name = name
        self._number = 0
        name.attempts += 1

    def send(self) -> None:
        """Count it as sent. Call this right before the hub sends it."""
        self.name.sent += 1
        self._number = self.name.sent

    def end(self, *, in_doubt: bool | None) -> None:
        """Count its end.

        Args:
            in_doubt: whether it may have made something that no answer named. None: it made nothing and says nothing of
                earlier creates, because it was not sent, or because the vendor refused the requested topology.
        """
        self.name.attempts -= 1
        if in_doubt:
            self.name.doubtful = max(self.name.doubtful, self._number)
        elif in_doubt is not None:
            self.name.certain = max(self.name.certain, self._number)
