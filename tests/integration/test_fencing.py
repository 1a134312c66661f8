"""Two nodes without kubelets, and a volume with `csi-bridge.io/offline: fence`: not one byte of the old node reaches
the disk after the hub has let the volume go.

The disk is hashed from then on until the old node has unmounted it. `FENCE_ROUNDS` sets the number of rounds.
"""

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.fenced_nodes import BOUND_S, KINDS, LEASE_S, FencedNodes, Node
from tests.kit.needs import needs_loops, needs_xfs
from tests.kit.waiting import let_pass, wait_for

pytestmark = needs_loops

ROUNDS = int(os.environ.get("FENCE_ROUNDS", "4"))

BOTH = pytest.mark.parametrize("fs_type", ["ext4", pytest.param("xfs", marks=needs_xfs)])


@pytest.fixture
def nodes(short_dir: Path, tmp_path: Path) -> Iterator[FencedNodes]:
    with FencedNodes(short_dir, tmp_path, "ext4") as nodes:
        yield nodes


def play(nodes: FencedNodes, chance: random.Random, rounds: int) -> Iterator[str]:
    """Let the volume go from node to node, each time by a fault of the one that has it. Yields a line a round."""
    names, faults = ["n1", "n2"], [Node.partition, Node.cut, Node.kill, Node.stop]
    nodes.move("n1")
    for number in range(rounds):
        old, new = (nodes.nodes[name] for name in names)
        names.reverse()
        if number % len(faults) == 0:
            chance.shuffle(faults)
        fault = faults[number % len(faults)]
        for kind in KINDS:
            old.write(kind)
        if chance.random() < 0.3:  # shorter than the lease: nothing is to happen, or all of it
            old.cut()
            let_pass(chance.uniform(0.1, LEASE_S / 2))
            old.heal()
        let_pass(chance.uniform(0.0, LEASE_S))
        resets = old.watchdog.resets
        fault(old)
        began = time.monotonic()
        nodes.end_pod()
        nodes.wait_detached(old.name)
        took_s = time.monotonic() - began
        at_detach = nodes.disk.hash()
        let_pass(0.5)
        assert nodes.disk.hash() == at_detach, f"{fault.__name__}: late blocks\n{old.tell()}"
        is_reset = old.watchdog.resets > resets
        yield f"{number} {fault.__name__}: {took_s:.1f} s, {'reset' if is_reset else 'shut down'}\n"
        assert is_reset == (fault in (Node.kill, Node.stop)), old.tell()
        old.stop_writers()
        old.heal()
        old.wait_clean()
        assert nodes.disk.hash() == at_detach, f"{fault.__name__}: late blocks at the unmount\n{old.tell()}"
        nodes.disk.detach(old.name)
        nodes.move(new.name)


@BOTH
@pytest.mark.slow
@pytest.mark.timeout(60 + 60 * ROUNDS)
def test_no_block_of_the_old_node_reaches_the_disk_after_the_detach(
    short_dir: Path, tmp_path: Path, fs_type: str
) -> None:
    seed = int(os.environ.get("FENCE_SEED", "0")) or random.randrange(1_000_000)
    with FencedNodes(short_dir, tmp_path, fs_type) as nodes, (tmp_path / "rounds.txt").open("w", buffering=1) as told:
        told.write(f"seed {seed}\n")
        told.writelines(play(nodes, random.Random(seed), ROUNDS))


@pytest.mark.slow
def test_a_volume_is_mounted_again_by_a_node_that_comes_back_in_time_and_goes_by_time_once_nobody_holds_it(
    nodes: FencedNodes,
) -> None:
    old, new = nodes.nodes["n1"], nodes.nodes["n2"]
    nodes.move("n1")
    old.write("open")
    old.partition()
    old.wait_fenced()
    old.stop_writers()
    old.heal()
    writer = old.write("fork")
    old.partition()
    began = time.monotonic()
    nodes.end_pod()
    nodes.wait_detached("n1")
    assert time.monotonic() - began >= BOUND_S - 1.5
    old.wait_fenced()
    old.heal()
    wait_for(lambda: "still holds it" in old.wait_fenced()["error"], what="holder", timeout_s=60, instead=old.tell)
    assert writer.running
    old.stop_writers()
    old.wait_clean()
    assert old.watchdog.resets == 0
    nodes.disk.detach("n1")
    nodes.move("n2")
    new.write("open")


@pytest.mark.slow
def test_a_staging_that_hangs_holds_the_detach_and_resets_nothing(nodes: FencedNodes) -> None:
    node = nodes.nodes["n1"]
    gate = node.vendor.hold("NodeStageVolume")
    nodes.move("n1")
    node.vendor.wait_for_call("NodeStageVolume")
    node.partition()
    nodes.end_pod()
    why = "its agent has not told how a call ended that may mount it"
    wait_for(lambda: why in nodes.detach("n1").message, what="node that is away")
    until = time.monotonic() + BOUND_S + 2.0
    while time.monotonic() < until:
        assert why in nodes.detach("n1").message
        let_pass(0.5)
    assert node.watchdog.resets == 0
    node.vendor.on("NodeStageVolume", node.stage)
    gate.set()
    node.heal()
    nodes.wait_detached("n1")


@pytest.mark.slow
def test_storage_that_hangs_ends_in_a_reset_and_the_detach_comes_after_it(short_dir: Path, tmp_path: Path) -> None:
    with FencedNodes(short_dir, tmp_path, "ext4", may_hang=True) as nodes:
        node = nodes.nodes["n1"]
        nodes.move("n1")
        node.write("open")
        node.write("direct")
        assert nodes.storage is not None
        nodes.storage.freeze()
        node.partition()
        nodes.end_pod()
        wait_for(lambda: nodes.detach("n1").ok or node.watchdog.resets, what="reset", timeout_s=60)
        assert (node.watchdog.resets, nodes.detach("n1").ok) == (1, False)
        nodes.wait_detached("n1")
        at_detach = nodes.disk.hash()
        let_pass(0.5)
        assert nodes.disk.hash() == at_detach
