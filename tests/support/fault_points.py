"""A death at a fault point: one pod's whole life on an edge node whose agent is killed at a named point of it.

Whatever the point, the agent's next life brings the node to where it should be, the vendor was never asked twice at a
time, nor otherwise than before, nor again for what had been written down as done, and the data is unharmed.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import TYPE_CHECKING, Any

from tests.support.edge_node import EdgeNode, pod, volume
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from examples.dirdriver.call_log import Call

_TEXT = "written by the pod\n"

_CALLS = {
    "stage": {"NodeStageVolume"},
    "publish": {"NodePublishVolume"},
    "unpublish": {"NodeUnpublishVolume"},
    "unstage": {"NodeUnstageVolume"},
    # A volume that has to grow is published only when it has grown: until then it is uncertain, and published again.
    "expand": {"NodeExpandVolume", "NodePublishVolume"},
    "facts": {"NodeExpandVolume", "NodePublishVolume"},
}
"""What a death in a step may have made twice."""

_OWN = {step: {f"Node{step.capitalize()}Volume"} for step in _CALLS}

_RECORDED = ("before-intent", "after-result")
"""Here the step was written down as done, or had not begun: its own call is made once."""


def live_through(node: EdgeNode, point: str, *, block: bool = False, grow: bool = False, **spec: Any) -> None:
    """Let a pod come and go with an agent that dies at the point, and check what that left.

    Args:
        node: its agent runs.
        point: where the agent dies.
        block: whether the volume is used as a device.
        grow: whether the claim is smaller than its volume, so that the node has to expand it.
        spec: further fields of the pod.
    """
    name = point.replace(".", "-")
    handle = node.make_volume(name, block=block)
    objects = volume(name, handle, block=block)
    if grow:
        objects[1]["status"] = {"capacity": {"storage": "8Mi"}}
    before = len(node.calls())
    node.agent.stop()
    node.restart_agent(fault_point=point)
    node.write(*objects, pod(name, name, block=[name] if block else (), **spec), file=name)
    died = _dies_before(node, lambda: [each["state"] for each in node.volumes(name)] == ["published"])
    _write_text(node.wait_published(name)[0])
    node.remove(name)
    died += _dies_before(node, lambda: not node.left_over())
    assert died == 1, f"the agent died {died} times at {point}"
    node.wait_clean()
    _check(node.calls()[before:], point)
    node.write(*objects, pod(name, name, block=[name] if block else (), **spec), file=name)
    assert _read_text(node.wait_published(name)[0]) == _TEXT
    node.remove(name)
    node.wait_clean()


def _dies_before(node: EdgeNode, look: Callable[[], bool]) -> bool:
    """Whether the agent died before something came about. If so it lives again, without the fault point."""
    wait_for(
        lambda: not node.agent.process.running or look(),
        what="death of the agent, or what it was at",
        instead=node.tell,
    )
    died = not node.agent.process.running
    if died:
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


def _check(calls: list[Call], point: str) -> None:
    for first, second in itertools.pairwise(calls):
        assert first.end is not None, f"{first.method} never ended"
        assert first.end <= second.start, f"{first.method} and {second.method} ran at the same time"
    asked = {(call.method, *sorted(call.fields.items())) for call in calls}
    assert len(asked) == len({call.method for call in calls}), f"asked otherwise: {asked}"
    step, _, where = point.partition(".")
    again = _CALLS[step] - (_OWN[step] if where in _RECORDED else set())
    often = Counter(call.method for call in calls if call.code == "OK")
    assert {method: count for method, count in often.items() if count > 1 + (method in again)} == {}
