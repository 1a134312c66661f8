"""The ends of the connected peers' certificates, for operators and for metrics."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from cloud.trust.admission import Role
from common.errors import timestamp
from common.net.certificate_ends import Term
from common.observe.metrics import Metrics
from common.wording import first_names

_ADVICE = {
    Role.EDGE: "a joined node renews by itself: read in its agent's log why it does not; give any other one a new file",
    Role.DRIVER: "give it a new file",
}

_MOST_NAMED = 3


class PeerTerm(NamedTuple):
    """The certificate of one connected peer."""

    role: Role
    name: str
    term: Term


def show_first_ends(metrics: Metrics, terms: Callable[[], Iterable[PeerTerm]]) -> None:
    def first(role: Role) -> float:
        # Not a number while nobody with a certificate is connected.
        return min((it.term.ends_at for it in terms() if it.role is role), default=float("nan"))

    for role in _ADVICE:
        metrics.certificate_ends.read_from(partial(first, role), role)


def ending(terms: Iterable[PeerTerm], now: float) -> list[str]:
    """A sentence for each role with certificates that end soon."""
    soon = sorted((it for it in terms if it.term.ends_soon(now)), key=lambda it: it.term.ends_at)
    sentences = []
    for role, advice in _ADVICE.items():
        found = [it for it in soon if it.role is role]
        if found:
            names = first_names([f"{it.name} at {timestamp(it.term.ends_at)}" for it in found], _MOST_NAMED)
            sentences.append(f"certificates of connected peers ({role}) end soon: {names}; {advice}")
    return sentences
