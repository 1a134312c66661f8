"""A claim: which node holds the name of a create, and until when. Pure.

Rules:

* A name stays with its node while a call under it is under way, while something may have been made under it that no
  answer told of (RULE A9), and as long as something is there that was made under it.
* Of several calls the one that ended last tells whether there is a doubt: it was for the same node and name.
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
        in_doubt: whether something may have been made that no answer told of.
        made: what answers told, and is there.
        is_tried: whether the disk was told of it, which it needs as long as anything is under way or in doubt.
        is_kept: whether the disk has it for certain.
    """

    driver: str
    name: str
    node: str
    attempts: int = 0
    in_doubt: bool = False
    made: set[Thing] = field(default_factory=set)
    is_tried: bool = False
    is_kept: bool = False

    @property
    def key(self) -> tuple[str, str]:
        """Driver and name."""
        return self.driver, self.name
