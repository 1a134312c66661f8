"""Playing: scenarios on a node, several at a time, each to its record and to what the clock said."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.peers.kubelet.node_under_test import NodeUnderTest
from tests.peers.kubelet.normal_form import Record, normal_form
from tests.peers.kubelet.recorder import Call, Recording
from tests.peers.kubelet.scenario import Scenario
from tests.peers.kubelet.scene import Scene

AT_ONCE = 4  # scenarios that are played side by side on one node: most of their time is waiting


@dataclass(frozen=True)
class Played:
    """How one scenario went."""

    scenario: Scenario
    record: Record  # its normal form; empty if it failed
    timeline: list[str]  # seconds since the first event, and what it was, with the durations of calls
    error: Exception | None = None  # why there is no record


def play(
    scenarios: Sequence[Scenario], *, node: NodeUnderTest, directory: Path, at_once: int = AT_ONCE
) -> Iterator[Played]:
    """Play scenarios on a node that runs, the slow ones first, and those that want the node alone at the end.

    Each is told as soon as it is over and those before it are.

    Args:
        directory: for the drivers; its path must be short.
        at_once: how many are played side by side.
    """
    numbered = list(enumerate(sorted(scenarios, key=lambda it: not it.slow), start=1))
    # Children die with the thread that started them, so a node is restarted in this thread, which lives on.
    alone = [(number, scenario) for number, scenario in numbered if scenario.alone]
    with ThreadPoolExecutor(at_once, "scene") as pool:
        together = [
            pool.submit(_play_one, scenario, node, directory / f"s{number}", number)
            for number, scenario in numbered
            if not scenario.alone
        ]
        yield from (future.result() for future in together)
    for number, scenario in alone:
        yield _play_one(scenario, node, directory / f"s{number}", number)


def _play_one(scenario: Scenario, node: NodeUnderTest, directory: Path, number: int) -> Played:
    directory.mkdir()
    scene = None
    try:
        scene = Scene(scenario, node=node, directory=directory, number=number)
        with scene:
            scenario.run(scene)
    except Exception as error:  # noqa: BLE001  # one that fails must not keep the others from their records
        return Played(scenario, {}, _timeline(scene.recorder.recording) if scene else [], error)
    record = normal_form(
        scene.recorder.recording,
        scenario=scenario.name,
        about=scenario.about,
        names=scene.names,
        notes=scene.notes,
        measures=scenario.measures,
    )
    return Played(scenario, record, _timeline(scene.recorder.recording))


def _timeline(recording: Recording) -> list[str]:
    if not recording.events:
        return []
    first = recording.events[0]
    start = first.began if isinstance(first, Call) else first.at
    lines = []
    for event in recording.events:
        if isinstance(event, Call):
            took = f"{event.ended - event.began:.3f} s" if event.ended else "unfinished"
            lines.append(f"{event.began - start:9.3f}     {event.method} {event.status} ({took})")
        else:
            lines.append(f"{event.at - start:9.3f} {event.text}")
    return lines
