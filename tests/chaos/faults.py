"""The faults of a run: what happens, to whom, when and for how long, planned from a seed. Pure."""

import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple

GAP_S = 1.5  # the mean time between two faults


class Kind(NamedTuple):
    """One kind of fault."""

    what: str
    whom: Sequence[str]  # the kinds of targets that it may have
    weight: float  # how often it comes
    longest_s: float  # how long it may last; of a killed process, until it is started again


_PROCESSES = ("hub", "agent", "agent", "proxy", "vendor", "vendor")

KINDS = (
    Kind("kill", _PROCESSES, 10, 4.0),
    Kind("term", _PROCESSES, 4, 4.0),
    Kind("stop", ("hub", "agent", "agent", "proxy"), 4, 9.0),
    # Less than a controller lease: a driver that goes on later may do what another node has undone (docs/recovery.md).
    Kind("stop", ("vendor",), 2, 3.0),
    Kind("stall both", ("link",), 3, 9.0),
    Kind("stall up", ("link",), 3, 9.0),
    Kind("stall down", ("link",), 3, 9.0),
    Kind("cut refuse", ("link",), 2, 6.0),
    Kind("cut hold", ("link",), 2, 6.0),
    Kind("rebind", ("link",), 2, 0.0),
    Kind("stall both", ("api link",), 1, 6.0),
    Kind("rebind", ("api link",), 1, 0.0),
    Kind("kill", ("api",), 1, 3.0),
    Kind("stop", ("api",), 1, 5.0),
    Kind("full", ("disk",), 2, 8.0),
    Kind("CreateVolume=delay:3s", ("vendor",), 2, 5.0),
    Kind("ControllerPublishVolume=delay:2s", ("vendor",), 1, 5.0),
    Kind("CreateVolume=crash-after", ("vendor",), 1, 3.0),
    Kind("DeleteVolume=crash-after", ("vendor",), 1, 3.0),
    Kind("ControllerPublishVolume=crash-after", ("vendor",), 1, 3.0),
    Kind("ControllerUnpublishVolume=error:INTERNAL:chaos", ("vendor",), 1, 3.0),
    Kind("CreateVolume=hang", ("vendor",), 1, 3.0),
)


class Fault(NamedTuple):
    """One fault; times are seconds of the run."""

    at_s: float
    what: str
    whom: str
    lasts_s: float

    def __str__(self) -> str:
        return f"{self.at_s:7.2f} s  {self.what:<20} {self.whom:<16} for {self.lasts_s:.2f} s"


def plan(dice: random.Random, seconds: float, targets: Mapping[str, Sequence[str]]) -> list[Fault]:
    """Plan the faults of so many seconds; a target has one fault at a time.

    Args:
        dice: the same ones plan the same faults.
        seconds: the end of the last fault.
        targets: by kind (`Kind.whom`), their names.
    """
    found, busy, now = list[Fault](), dict[str, float](), GAP_S
    while now < seconds:
        (kind,) = dice.choices(KINDS, [it.weight for it in KINDS])
        whom, lasts = dice.choice(targets[dice.choice(kind.whom)]), dice.uniform(0.1, max(kind.longest_s, 0.1))
        if busy.get(whom, 0.0) < now and now + lasts < seconds:
            found.append(Fault(now, kind.what, whom, lasts))
            busy[whom] = now + lasts + 0.5
        now += dice.expovariate(1 / GAP_S)
    return found
