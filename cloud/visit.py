"""A visit: one link of an edge node, from its hello to its end."""

from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from common.link import Link
from common.reports import DriverReport


@dataclass(slots=True)
class Visit:
    """One link of a node.

    Attributes:
        link: the link.
        began: when its hello came, in seconds of the monotonic clock.
        ended: when the link ended or was replaced, in seconds since the epoch; 0 before.
        told: its agent's last reports, by driver.
        gone: drivers that its agent has reported on this link, and reports no more.
        calls: the calls that are under way on it, by driver.
        untaken: why the hub could not take its agent's newest reports; empty if it could.
        problems: what its agent says must be solved on the node.
    """

    link: Link
    began: float
    ended: float = 0.0
    told: Mapping[str, DriverReport] = field(default_factory=dict)
    gone: AbstractSet[str] = frozenset()
    calls: Counter[str] = field(default_factory=Counter)
    untaken: str = ""
    problems: Sequence[str] = ()
