"""A finding: what one check found: that something is well, or what is wrong with it and what to do."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

NO_API_SERVER = (
    "see that packets reach the API server: its address in the kubeconfig, routes, firewalls, and the NetworkPolicy of "
    "the pod, which must allow the API server's port"
)
"""What to do if the API server of Kubernetes does not answer."""

HUBS_ROLES = (
    "apply my-cluster/cloud again: kubectl apply -k my-cluster/cloud (its roles are those of "
    "deploy/cloud/base/hub-rbac.yaml)"
)
"""What to do if the API server refuses what the hub needs."""


class Level(StrEnum):
    """How it stands. Only `WRONG` makes the command fail."""

    OK = "ok"
    WARNING = "warning"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found.

    Attributes:
        level: how it stands.
        what: a sentence.
        do: what to do; empty if it is well.
    """

    level: Level
    what: str
    do: str = ""


def ok(what: str) -> Finding:
    """It is well."""
    return Finding(Level.OK, what)


def warning(what: str, do: str) -> Finding:
    """It works now, or it may be meant so."""
    return Finding(Level.WARNING, what, do)


def wrong(what: str, do: str) -> Finding:
    """It does not work."""
    return Finding(Level.WRONG, what, do)


@dataclass(frozen=True, slots=True)
class Check:
    """One thing to look at."""

    name: str
    run: Callable[[], Awaitable[Finding]]
    late: str = (
        "look at the log and the load of the process that was asked; if it is only slow, give a longer --timeout"
    )
    """What to do if it does not end in time."""


@dataclass(frozen=True, slots=True)
class Result:
    """What the check of a name found."""

    name: str
    finding: Finding


def known(name: str, finding: Finding) -> Check:
    """A check of what is known already."""

    async def run() -> Finding:
        return finding

    return Check(name, run)


async def perform(checks: Sequence[Check], *, limit_s: float) -> list[Result]:
    """Make the checks, one after another, each within its time."""
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
    """Some names for a sentence."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
