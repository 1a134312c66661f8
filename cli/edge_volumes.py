"""The command `edge volumes`: shows the volumes of this node's pods, and waits until they are published."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from typing import TypeVar

from cli.operators.table import answer, paragraph, printable, say, table
from common.errors import BridgeError
from common.pages.agent import NodeVolumes, PodVolumeStatus
from common.pages.client import NoSuchPage, ask_page
from common.pages.json_form import shown

T = TypeVar("T")

# Time between two questions while waiting: a tenth of the time of a mount, and hardly any work for the agent.
_ASK_AGAIN_S = 0.2

# States without a wait: the volume is published, on its way out, or a leftover that no pod wants.
_SETTLED = {"published", "unpublishing", "unstaging", "left over"}

_ANSWER_S = 10.0  # Time limit for one answer. The agent answers from memory.


def ask(status: Path, *, timeout_s: float = _ANSWER_S) -> NodeVolumes:
    return ask_agent(status, "/volumes", NodeVolumes, timeout_s=timeout_s)


def ask_agent(status: Path, path: str, page: type[T], *, timeout_s: float) -> T:
    try:
        return ask_page(status, path, page, timeout_s=timeout_s)
    except PermissionError as error:
        raise BridgeError(f"the status socket {status} is closed to this user; run this as root") from error
    except OSError as error:
        raise BridgeError(
            f"no edge agent answers at {status} ({str(error) or type(error).__name__}); run this on the edge node, and "
            f"see that csi-bridge edge run runs there; --status names its socket if it is another one"
        ) from error
    except (NoSuchPage, ValueError) as error:
        if isinstance(error, NoSuchPage) and error.status == HTTPStatus.SERVICE_UNAVAILABLE:
            raise BridgeError(f"the edge agent at {status} did not answer: {error}") from error
        raise BridgeError(f"the server at {status} is no edge agent, or one of another version: {error}") from error


def select(state: NodeVolumes, pod: tuple[str, str] | None) -> NodeVolumes:
    if pod is None:
        return state
    return replace(
        state,
        pods=[item for item in state.pods if (item.namespace, item.name) == pod],
        volumes=[item for item in state.volumes if (item.namespace, item.pod) == pod],
    )


def missing(state: NodeVolumes, pod: tuple[str, str] | None) -> list[str]:
    """The reasons to wait on, a sentence each. The list is empty if every wanted volume is published."""
    if state.observing:
        return [f"a kubelet mounts the volumes of node {state.node} (--registration=observe)"]
    found = []
    if not state.started:
        found.append(f"node {state.node} mounts nothing yet: {state.trouble}")
    if pod is not None and not state.pods:
        found.append(f"pod {pod[0]}/{pod[1]} is not known on node {state.node}{_how_old(state)}")
    elif state.as_of is None:
        found.append(f"node {state.node} may have more pods{_how_old(state)}")
    return found + [_line(volume) for volume in state.volumes if volume.state not in _SETTLED]


def _line(volume: PodVolumeStatus) -> str:
    why = f": {volume.error}" if volume.error else ""
    return f"{named(volume)} is {volume.state}{why}"


def named(volume: PodVolumeStatus) -> str:
    if not volume.pod:
        return f"volume {volume.handle} of driver {volume.driver} (no pod has it)"
    return f"{volume.namespace}/{volume.pod} {volume.volume}"


def show(state: NodeVolumes) -> Iterator[str]:
    volumes = state.volumes
    published = sum(volume.state == "published" for volume in volumes)
    link = "connected" if state.connected else "offline"
    yield (
        f"node {state.node} is {link} since {shown(state.since)}; {published} of {len(volumes)} volumes published"
        f"{_how_old(state)}"
    )
    if volumes:
        head = ("POD", "VOLUME", "DRIVER", "STATE", "SINCE", "PATH")
        yield from paragraph(table(head, [_row(volume) for volume in volumes]))
    devices = [(volume, device) for volume in volumes for device in volume.devices]
    if devices:
        rows = [(f"{volume.namespace}/{volume.pod}", one.container, one.path, one.name) for volume, one in devices]
        yield from paragraph(table(("POD", "CONTAINER", "AT", "DEVICE"), rows))
    wrong = [f"node {state.node}: {state.trouble}"] if state.trouble else []
    wrong += [_line(volume) for volume in volumes if volume.state != "published" and volume.error]
    yield from paragraph(wrong)


def _row(volume: PodVolumeStatus) -> tuple[str, ...]:
    return (
        f"{volume.namespace}/{volume.pod}" if volume.pod else "-",
        volume.volume or volume.handle,
        volume.driver,
        volume.state + (f", deferred to the runtime ({volume.runtime})" if volume.runtime else ""),
        shown(volume.since) if volume.since else "-",
        volume.path,
    )


def namespaced(pod: str) -> tuple[str, str]:
    namespace, slash, name = pod.partition("/")
    return (namespace, name) if slash else ("default", namespace)


def run(status: Path, pod: str | None, *, wait: bool, timeout_s: float, as_json: bool) -> int:
    """Print the volumes. The exit code is 1 if a volume is not published at the end of --wait."""
    wanted = namespaced(pod) if pod is not None else None

    def look() -> NodeVolumes:
        return select(ask(status, timeout_s=min(_ANSWER_S, timeout_s)), wanted)

    state, still = _wait(look, wanted, timeout_s) if wait else (look(), [])
    answer(show(state), state, as_json=as_json)
    for line in still:
        say(f"csi-bridge: not within {timeout_s:g} s: {printable(line)}", err=True)
    return 1 if still else 0


def _wait(
    look: Callable[[], NodeVolumes], pod: tuple[str, str] | None, timeout_s: float
) -> tuple[NodeVolumes, list[str]]:
    # an agent that does not answer yet is waited for, too
    give_up = time.monotonic() + timeout_s
    told: list[str] = []
    while True:
        late = time.monotonic() >= give_up
        try:
            state = look()
        except BridgeError as error:
            if late:
                raise
            still = [str(error)]
        else:
            still = missing(state, pod)
            if late or not still:
                return state, still
        for line in still:
            if line not in told:
                say(f"waiting: {printable(line)}", err=True)
        told = still
        time.sleep(min(_ASK_AGAIN_S, max(0.0, give_up - time.monotonic())))


def _how_old(state: NodeVolumes) -> str:
    # The age of the node's knowledge of its pods, as the end of a sentence; empty if it is current.
    as_of = state.as_of
    if as_of is None:
        return "; the hub has not told this node its pods yet"
    return "" if state.connected else f"; its records are of {shown(as_of)}"
