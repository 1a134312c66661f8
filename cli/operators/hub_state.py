"""The hub's state, from its pages on its UNIX socket (`common.pages.hub`)."""

from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, TypeVar

from cli.operators.operator import in_words
from cli.operators.table import printable
from common.errors import BridgeError, DialError
from common.net.endpoint import Endpoint
from common.pages.client import NoSuchPage, ask_page
from common.pages.hub import HubStatus, NodeStatus
from common.pages.json_form import plain, shown

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class HubState:
    """The hub as a whole, and its nodes."""

    hub: HubStatus
    nodes: list[NodeStatus]


def ask(hub: Endpoint, path: str, page: type[T], *, timeout_s: float) -> T:
    assert hub.path is not None
    try:
        return ask_page(hub.path, path, page, timeout_s=timeout_s)
    except TimeoutError:
        raise BridgeError(f"the hub at {hub} has not sent its state within {timeout_s:g} s") from None
    except OSError as error:
        raise DialError(str(hub), in_words(error) or error.strerror or str(error)) from error
    except NoSuchPage as error:
        raise _refused(hub, error) from error
    except ValueError as error:
        raise BridgeError(
            f"the hub at {hub} is of another version, whose state cannot be read here: {error}"
        ) from error


def ask_state(hub: Endpoint, *, timeout_s: float) -> HubState:
    # A standby tells no nodes.
    status = ask(hub, "/status", HubStatus, timeout_s=timeout_s)
    return HubState(status, ask(hub, "/nodes", list[NodeStatus], timeout_s=timeout_s) if status.leads else [])


def standby(hub: HubStatus) -> str:
    leader = f"{hub.leader} leads" if hub.leader else "no hub leads"
    since = f" since {shown(hub.since)}" if hub.leader and hub.since is not None else ""
    links = f"{hub.links} peer{'' if hub.links == 1 else 's'} connected"
    return printable(f"{hub.software}: standby with {links}: {leader}{since}")


def as_json(state: HubState, *only: str) -> dict[str, Any]:
    found = {"nodes": plain(state.nodes), **plain(state.hub)}
    return {name: found[name] for name in only or found}


def _refused(hub: Endpoint, error: NoSuchPage) -> BridgeError:
    match error.status:
        case HTTPStatus.SERVICE_UNAVAILABLE:
            return BridgeError(f"the hub at {hub} did not answer: {error}")
        case HTTPStatus.FORBIDDEN:
            return DialError(str(hub), f"what listens there turned us away: {error}")
    return DialError(str(hub), f"what listens there is no hub: HTTP {error.status}")
