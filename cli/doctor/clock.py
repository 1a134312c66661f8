"""A clock: how far this machine's is from another one's, by the Date of an HTTP answer."""

from email.utils import parsedate_to_datetime

from cli.doctor.finding import Finding, ok, warning, wrong

_EXACT_S = 0.5
"""A Date is cut to whole seconds: on average it is half a second old."""

_LARGE_S, _TOO_LARGE_S = 5.0, 300.0
"""From the first one on, logs of the two do not fit together, and a lease may seem over; from the second one on, a new
certificate or token may seem not to count yet."""


def skew_s(date: str, *, asked: float, answered: float) -> float | None:
    """By how much this machine is ahead; None if the date cannot be read.

    Args:
        date: the header.
        asked: when the question was sent, in seconds since the epoch, by this machine.
        answered: when the answer came.
    """
    try:
        theirs = parsedate_to_datetime(date).timestamp()
    except ValueError:
        return None
    return (asked + answered) / 2 - (theirs + _EXACT_S)


def check_clock(ahead_s: float | None, *, of: str) -> Finding:
    """Whether this machine and another one have the same time."""
    if ahead_s is None:
        return warning(f"{of} does not tell its time", f"compare the clocks of this machine and of {of} by hand")
    if abs(ahead_s) < _LARGE_S:
        return ok(f"this machine and {of} have the same time, to {_LARGE_S:g} s")
    text = f"the clock of this machine is {abs(ahead_s):.0f} s {'ahead of' if ahead_s > 0 else 'behind'} that of {of}"
    do = "let both follow a time server (chrony, systemd-timesyncd)"
    return (wrong if abs(ahead_s) >= _TOO_LARGE_S else warning)(text, do)
