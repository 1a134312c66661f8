"""A finding: the result of one check, with a remedy if there is a fault."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

NO_API_SERVER = (
    "see that packets reach the API server: its address in the kubeconfig, routes, firewalls, and the NetworkPolicy of "
    "the pod, which must allow the API server's port"
)
"""The advice if Kubernetes' API server does not answer."""

HUBS_ROLES = (
    "apply my-cluster/cloud again: kubectl apply -k my-cluster/cloud (its roles are those of "
    "deploy/cloud/base/hub-rbac.yaml)"
)
"""The advice if the API server refuses the hub's requests."""


class Level(StrEnum):
    """The severity of a finding. Only `WRONG` makes the command fail."""

    OK = "ok"
    WARNING = "warning"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Attributes:
        level: its severity.
        what: the observation, as a sentence.
        do: the advice; empty for `OK`.
    """

    level: Level
    what: str
    do: str = ""


def ok(what: str) -> Finding:
    """A finding without a fault."""
    return Finding(Level.OK, what)


def warning(what: str, do: str) -> Finding:
    """A finding that may be intended, or does no harm yet."""
    return Finding(Level.WARNING, what, do)


def wrong(what: str, do: str) -> Finding:
    """A finding of a fault."""
    return Finding(Level.WRONG, what, do)


@dataclass(frozen=True, slots=True)
class Check:
    """One check: its name and the function that makes it."""

    name: str
    run: Callable[[], Awaitable[Finding]]
    late: str = (
        "look at the log and the load of the process that was asked; if it is only slow, give a longer --timeout"
    )
    """The advice if the check does not end in time."""


@dataclass(frozen=True, slots=True)
class Result:
    """A check's name and its finding."""

    name: str
    finding: Finding


def known(name: str, finding: Finding) -> Check:
    """A check whose finding is known already."""

    async def run() -> Finding:
        return finding

    return Check(name, run)


async def perform(checks: Sequence[Check], *, limit_s: float) -> list[Result]:
    """Make the checks, one after another, each within the time limit."""
    return [Result(check.name, await _performed(check, limit_s)) for check in checks]


async def _performed(check: Check, limit_s: float) -> Finding:
    try:
        async with asyncio.timeout(limit_s):
            return await check.run()
    except TimeoutError:
        return wrong(f"there was no answer within {limit_s:g} s", check.late)
    except Exception as error:  # noqa: BLE001  # one check that fails must not hide the others
        return wrong(f"the check itself failed: {error!r}", "this is a bug in CSI Bridge: please report it")


def listed(names: Sequence[str], *, most: int = 5) -> str:
    """The first names of a list, and the number of the others, for a sentence."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
