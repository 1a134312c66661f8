"""A finding: the result of one check, with a remedy if there is a fault."""

import asyncio
from collections.abc import Awaitable
from enum import StrEnum
from typing import NamedTuple

from common.errors import BridgeError

# The advice if Kubernetes' API server does not answer, or refuses.
API_SERVER = (
    "see that packets reach the API server: its address in the kubeconfig, routes, firewalls, and the NetworkPolicy of "
    "the pod, which must allow the API server's port; if the answer is 'forbidden', see the check of the permissions"
)


class Level(StrEnum):
    """The severity of a finding. Only `WRONG` makes the command fail."""

    OK = "ok"
    WARNING = "warning"
    WRONG = "wrong"


class Finding(NamedTuple):
    """The result of one check: its severity, the observation in a sentence, and the advice, empty for `OK`."""

    level: Level
    what: str
    do: str = ""


def ok(what: str) -> Finding:
    return Finding(Level.OK, what)


def warning(what: str, do: str) -> Finding:
    """A finding that may be intended, or does no harm yet."""
    return Finding(Level.WARNING, what, do)


def wrong(what: str, do: str) -> Finding:
    return Finding(Level.WRONG, what, do)


Result = tuple[str, Finding]  # a check's name and its finding


async def attempt(name: str, check: Awaitable[Finding], do: str, *, limit_s: float) -> Result:
    """Make a check within the time limit. `do` is the advice if it raises BridgeError, or ends too late."""
    try:
        async with asyncio.timeout(limit_s):
            return name, await check
    except TimeoutError:
        return name, wrong(f"there was no answer within {limit_s:g} s; a longer --timeout may help", do)
    except BridgeError as error:
        return name, wrong(str(error), do)
    except Exception as error:  # noqa: BLE001  # one check that fails must not hide the others
        return name, wrong(f"the check itself failed: {error!r}", "this is a bug in CSI Bridge: please report it")
