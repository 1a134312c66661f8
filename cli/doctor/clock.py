"""A clock: compares this machine's with another one's, by the Date of an HTTP answer."""

from email.utils import parsedate_to_datetime

from cli.doctor.finding import Finding, ok, warning, wrong

_EXACT_S = 0.5
"""A Date is cut to whole seconds: on average it is half a second old."""

_LARGE_S, _TOO_LARGE_S = 5.0, 300.0
"""Above the first one, the machines' logs do not fit together, and a lease may seem to be over. Above the second one, a
new certificate or token may seem not to be valid yet."""


def skew_s(date: str, *, asked: float, answered: float) -> float | None:
    """The seconds by which this machine is ahead; None if the date cannot be read.

    Args:
        date: the header.
        asked: the time of the request, seconds since the epoch by this machine's clock.
        answered: the time of the answer.
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
