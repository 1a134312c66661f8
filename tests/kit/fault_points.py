"""A death at a fault point: the whole life of one pod on an edge node whose agent is killed at a named point of it.

At every point, the agent's next life must reach the wanted state. The vendor must never get two calls at a time, calls
in another order, or a call for a step recorded as done. The data must be unharmed.
"""

import itertools
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.kit.edge_node import EdgeNode, pod, volume
from tests.kit.testdriver.call_log import Call
from tests.kit.waiting import wait_for

FILESYSTEM = [
    *(f"stage.{point}" for point in (
        "before-intent", "after-intent", "before-dir", "after-dir", "before-data", "before-rename", "after-data",
        "before-call", "after-call", "before-result", "after-result")),
    *(f"publish.{point}" for point in (
        "before-intent", "after-intent", "before-dir", "after-dir", "before-data", "before-rename", "after-data",
        "before-call", "after-call", "before-ownership", "after-ownership", "before-result", "after-result")),
    *(f"unpublish.{point}" for point in (
        "before-intent", "after-intent", "before-call", "after-call", "before-clean", "after-target",
        "after-data-removed", "after-clean", "before-result", "after-result")),
    *(f"unstage.{point}" for point in (
        "before-intent", "after-intent", "before-call", "after-call", "before-clean", "after-target",
        "after-data-removed", "after-clean", "before-result", "after-result")),
]  # fmt: skip
"""The points of a filesystem volume with an fsGroup."""

BLOCK = [
    *(f"stage.{point}" for point in ("before-dir", "before-data", "after-data", "after-dir", "after-call")),
    *(f"publish.{point}" for point in (
        "before-dir", "after-dir", "before-call", "after-call", "before-bind", "after-bind", "after-link", "after-loop",
        "before-result")),
    *(f"unpublish.{point}" for point in (
        "before-loop", "after-loop", "after-link", "after-unbind", "after-map", "before-call", "after-call",
        "after-clean")),
    *(f"unstage.{point}" for point in (
        "before-call", "after-call", "before-clean", "after-target", "after-data-removed", "after-clean")),
]  # fmt: skip
"""The points at which a block volume differs from a filesystem volume."""

DEFERRED = [
    *(f"format.{point}" for point in ("before-intent", "after-intent", "after-make")),
    *(f"handover.{point}" for point in ("before-intent", "after-intent", "after-guard", "after-info")),
    "publish.after-cdi",
    *(f"unpublish.{point}" for point in ("after-cdi", "before-info", "after-info", "after-guard")),
]  # fmt: skip
"""The points that only a deferred volume has. It has those of a block volume, too."""

GROWING = [
    "expand.before-intent", "expand.after-intent", "expand.before-call", "expand.after-call", "expand.before-result",
    "expand.after-result", "facts.before-claim", "facts.after-claim",
]  # fmt: skip
"""The points of a volume whose claim is smaller."""

REFUSED_STAGE = ["stage.before-clean", "stage.after-target", "stage.after-data-removed"]
REFUSED_PUBLISH = ["publish.before-clean", "publish.after-target", "publish.after-data-removed"]
"""The points after a driver's refusal."""

LOOKS = ["stats.before-call", "stats.after-call", "health.before-call", "health.after-call"]
"""The points that a published volume passes each minute."""

LEFTOVERS = ["leftovers.before-clean", "leftovers.after-target", "leftovers.after-data-removed"]
"""The points at which directories are removed that belong to no volume."""

IDENTITY = [f"identity.{point}" for point in (
    "before-request", "after-request", "before-store", "after-ca", "after-settings", "before-rename",
    "after-certificate", "after-store")]  # fmt: skip
"""The points of an agent, or of `edge join`, that gets a certificate."""

ISSUE = [
    *(f"enrolment.{point}" for point in ("before-issue", "after-issue", "after-answer")),
    *(f"generations.{point}" for point in ("before-use", "after-use")),
]
"""The points of a hub that issues a certificate, and takes it for the first time."""

LEAD = [f"lead.{point}" for point in ("after-lease", "after-records", "after-epoch", "before-links", "after-links")]
"""The points of a hub that takes over."""

ALL = {
    *FILESYSTEM,
    *BLOCK,
    *DEFERRED,
    *GROWING,
    *REFUSED_STAGE,
    *REFUSED_PUBLISH,
    *LOOKS,
    *LEFTOVERS,
    *IDENTITY,
    *ISSUE,
    *LEAD,
}
"""Each of these has a test."""

_TEXT = "written by the pod\n"

_CALLS = {
    "stage": {"NodeStageVolume"},
    "publish": {"NodePublishVolume"},
    "format": {"NodePublishVolume"},
    "handover": {"NodePublishVolume"},
    "unpublish": {"NodeUnpublishVolume"},
    "unstage": {"NodeUnstageVolume"},
    # A volume that must grow is published only when it has grown: until then it is uncertain, and published again.
    "expand": {"NodeExpandVolume", "NodePublishVolume"},
    "facts": {"NodeExpandVolume", "NodePublishVolume"},
}
"""The calls that a death in a step may have repeated."""

_OWN = {step: {f"Node{step.capitalize()}Volume"} for step in _CALLS}

_RECORDED = ("before-intent", "after-result")
"""At these points the step was recorded as done, or had not begun: its own call is made once."""


def some_always(points: Sequence[str]) -> list[Any]:
    """Return the points as parameters: one in ten for every run, the others for slow runs, such as CI's."""
    return [
        point if number % 10 == 0 else pytest.param(point, marks=pytest.mark.slow)
        for number, point in enumerate(points)
    ]


def live_through(
    node: EdgeNode, point: str, *, block: bool = False, grow: bool = False, refuses: str = "", **spec: Any
) -> None:
    """Run a pod's life with an agent that dies at the point, and check the result.

    Args:
        node: its agent runs.
        point: the agent's fault point.
        block: the volume is used as a device.
        grow: the claim is smaller than its volume, so that the node has to expand it.
        refuses: a method that the driver answers with INTERNAL until the agent has died.
        spec: further fields of the pod.
    """
    name = point.replace(".", "-") + "-block" * block
    handle = node.make_volume(name, block=block)
    objects = volume(name, handle, block=block)
    if grow:
        objects[1]["status"] = {"capacity": {"storage": "8Mi"}}

    def write(**phases: str) -> None:
        names = {"first": name, "again": f"{name}-again"}
        pods = [
            pod(names[which], name, block=[name] if block else (), **spec) | {"status": {"phase": phase}}
            for which, phase in phases.items()
        ]
        node.write(*objects, *pods, file=name)

    before = len(node.calls())
    node.agent.kill()
    node.restart_agent(fault_point=point)
    if refuses:
        node.driver.set_faults(f"{refuses}=error:INTERNAL:not now")
    write(first="Running")
    died = dies_before(node, lambda: [each["state"] for each in node.volumes(name)] == ["published"])
    _write_text(node.wait_published(name)[0])
    write(first="Succeeded")
    died += dies_before(node, lambda: died and not node.left_over())
    assert died == 1, f"the agent died {died} times at {point}"
    node.wait_clean()
    check_calls(node.calls()[before:], point)
    write(first="Succeeded", again="Running")
    assert _read_text(node.wait_published(f"{name}-again")[0]) == _TEXT
    write(first="Succeeded", again="Succeeded")
    node.wait_clean()
    node.remove(name)


def dies_before(node: EdgeNode, look: Callable[[], object]) -> bool:
    """Return whether the agent died before `look` was true. If so, it is started again without the fault point.

    From then on the driver works.

    Args:
        node: its agent runs.
        look: true only while the agent answers: a dying process looks like a running one for a moment.
    """
    wait_for(
        lambda: not node.agent.process.running or look(),
        what="death of the agent, or what it was at",
        instead=node.tell,
    )
    died = not node.agent.process.running
    if died:
        assert node.agent.process.exit_status == -signal.SIGKILL, node.tell()
        node.driver.set_faults()
        node.restart_agent()
    return died


def _write_text(path: Path) -> None:
    if path.is_dir():
        (path / "file").write_text(_TEXT)
    else:
        with path.open("r+b") as device:
            device.write(_TEXT.encode())


def _read_text(path: Path) -> str:
    if path.is_dir():
        return (path / "file").read_text()
    with path.open("rb") as device:
        return device.read(len(_TEXT)).decode()


def check_calls(calls: list[Call], point: str) -> None:
    for first, second in itertools.pairwise(calls):
        assert first.end is not None, f"{first.method} never ended"
        assert first.end <= second.start, f"{first.method} and {second.method} ran at the same time"
    asked = {(call.method, *sorted(call.fields.items())) for call in calls}
    assert len(asked) == len({call.method for call in calls}), f"asked otherwise: {asked}"
    step, _, where = point.partition(".")
    again = _CALLS[step] - (_OWN[step] if where in _RECORDED else set())
    often = Counter(call.method for call in calls if call.code == "OK")
    assert {method: count for method, count in often.items() if count > 1 + (method in again)} == {}
