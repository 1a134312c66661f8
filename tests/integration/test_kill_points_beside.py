"""kill -9 at the fault points beside a volume's usual way: what grows, is refused, is looked at, or lies there."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.edge_node import DRIVER, EdgeNode, pod, volume
from tests.kit.fault_points import (
    GROWING,
    LEFTOVERS,
    LOOKS,
    REFUSED_PUBLISH,
    REFUSED_STAGE,
    dies_before,
    live_through,
    some_always,
)
from tests.kit.needs import needs_loops, needs_mounts

pytestmark = [needs_mounts, pytest.mark.slow]


@pytest.fixture(scope="module")
def node(module_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EdgeNode]:
    with EdgeNode(module_dir, tmp_path_factory.mktemp("logs")) as node:
        node.start("--volume-stats-interval=1s")
        yield node


@pytest.mark.parametrize("point", some_always(GROWING))
def test_a_volume_that_grows_survives_a_death_at(node: EdgeNode, point: str) -> None:
    live_through(node, point, grow=True)


@pytest.mark.parametrize("point", some_always(REFUSED_STAGE))
def test_a_volume_whose_staging_is_refused_survives_a_death_at(node: EdgeNode, point: str) -> None:
    live_through(node, point, refuses="NodeStageVolume")


@pytest.mark.parametrize("point", some_always(REFUSED_PUBLISH))
def test_a_volume_whose_publication_is_refused_survives_a_death_at(node: EdgeNode, point: str) -> None:
    live_through(node, point, refuses="NodePublishVolume")


@needs_loops
@pytest.mark.parametrize("point", some_always(REFUSED_STAGE))
def test_a_block_volume_whose_staging_is_refused_survives_a_death_at(node: EdgeNode, point: str) -> None:
    live_through(node, point, refuses="NodeStageVolume", block=True)


@pytest.mark.parametrize("point", LOOKS)
def test_a_published_volume_is_let_alone_after_a_death_at(node: EdgeNode, point: str) -> None:
    name = point.replace(".", "-")
    objects = volume(name, node.make_volume(name))
    node.agent.kill()
    node.restart_agent(fault_point=point)
    node.write(*objects, pod(name, name), file=name)
    assert dies_before(node, lambda: False)
    node.wait_published(name)
    calls = [call.method for call in node.calls()][-2:]
    assert calls == ["NodeStageVolume", "NodePublishVolume"]
    node.write(*objects, pod(name, name) | {"status": {"phase": "Failed"}}, file=name)
    node.wait_clean()


@pytest.mark.parametrize("point", some_always(LEFTOVERS))
@pytest.mark.parametrize(
    "places",
    [
        [f"plugins/kubernetes.io/csi/{DRIVER}/0123/globalmount"],
        ["pods/u-1/volumes/kubernetes.io~csi/pv-gone/mount"],
        [f"plugins/kubernetes.io/csi/volumeDevices/{place}" for place in ("pv-b/data", "staging/pv-b", "publish/pv-b")],
    ],
    ids=["staging", "publication", "block volume"],
)
def test_what_an_earlier_time_left_is_removed_after_a_death_at(node: EdgeNode, point: str, places: list[str]) -> None:
    node.agent.kill()
    for place in places:
        (node.root / place).mkdir(parents=True)
    node.restart_agent(fault_point=point, wait=False)
    assert dies_before(node, lambda: False)
    node.wait_clean()
