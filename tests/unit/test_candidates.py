"""The candidates: which edge nodes can be elected to serve a driver, and since when they are away."""

import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from cloud.claims.election import ServingCandidate
from common.csi.reports import DriverReport
from common.session.link import Link
from tests.kit.waiting import settle
from tests.unit.test_edge_nodes import DRIVER, Known, hello, report


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[Known]:
    world = Known(tmp_path)
    yield world
    await world.close()


async def came(world: Known, *, lease_s: int = 60) -> tuple[Link, Link]:
    """The agent of n1 is connected, and says how long it goes on without its hub."""
    links = await world.connected()
    peer = links[0].peer
    assert peer is not None
    links[0].peer = replace(peer, controller_lease_s=lease_s)
    return links


def candidate(world: Known) -> ServingCandidate:
    return world.nodes.of("n1").serving_candidate(DRIVER)


async def test_a_connected_node_that_reports_the_driver_can_serve_it(world: Known) -> None:
    await came(world)
    assert candidate(world) == ServingCandidate()
    assert world.nodes.of("n1").lease_s == 60
    assert world.nodes.of("n1").gone_at() is None


@pytest.mark.parametrize("lease_s", [0, 86_401, 2**63 - 1])
async def test_an_agent_that_knows_no_elections_or_lies_about_its_lease_cannot_serve(
    world: Known, lease_s: int
) -> None:
    await came(world, lease_s=lease_s)
    assert candidate(world).unfit == "announces no usable --controller-lease"
    assert world.nodes.of("n1").lease_s == 0
    assert candidate(world).away_since is None


async def test_a_node_that_left_is_away_from_then_on(world: Known) -> None:
    at_hub, _ = await came(world)
    before = time.monotonic()
    world.nodes.disconnect("n1", at_hub)
    away = candidate(world).away_since
    left = world.nodes.of("n1").gone_at()
    assert candidate(world).unfit == "is away"
    assert away is not None
    assert before <= away == left.monotonic <= time.monotonic()
    assert world.nodes.of("n1").lease_s == 0


async def test_after_a_restart_of_the_hub_a_node_counts_as_away_from_there(world: Known) -> None:
    await came(world)
    before = time.monotonic()
    again = await world.restart()
    away = candidate(again).away_since
    assert away is not None
    assert away >= before
    await again.close()


async def test_a_node_that_drains_cannot_serve(world: Known) -> None:
    at_hub, _ = await came(world)
    at_hub.draining = True
    assert candidate(world) == ServingCandidate("drains")


async def test_a_node_whose_drain_is_over_has_shut_down_and_is_not_only_away(world: Known) -> None:
    at_hub, at_agent = await came(world)
    at_agent.drain("the edge agent is shutting down")  # without a call under way it ends at once
    await settle()
    world.nodes.disconnect("n1", at_hub)
    assert candidate(world) == ServingCandidate("has shut down")
    link = await world.come(hello(boot=2))
    world.nodes.disconnect("n1", link)
    assert candidate(world).unfit == "is away"


async def test_a_node_whose_driver_is_away_cannot_serve_and_can_when_that_is_back(world: Known) -> None:
    await came(world)
    await world.nodes.report("n1", [replace(report(), away="no such socket" + "x" * 1_000)])
    assert candidate(world).unfit.startswith("has lost the driver: no such socket")
    assert len(candidate(world).unfit) < 200
    assert candidate(world).away_since is None
    await world.nodes.report("n1", [report()])
    assert candidate(world) == ServingCandidate()


async def test_a_node_that_reports_the_driver_no_more_cannot_serve(world: Known) -> None:
    await came(world)
    await world.nodes.report("n1", [DriverReport("other.example", "n1", report().answers)])
    assert candidate(world) == ServingCandidate("reports the driver no more")
    await world.nodes.report("n1", [])
    assert candidate(world) == ServingCandidate("reports the driver no more")


async def test_a_node_that_has_just_come_back_is_away_until_it_reports_the_driver(world: Known) -> None:
    at_hub, _ = await came(world)
    world.nodes.disconnect("n1", at_hub)
    link = await world.come(hello(boot=2))
    assert link.peer is not None
    link.peer = replace(link.peer, controller_lease_s=60)
    assert candidate(world).unfit == "has not reported the driver since it connected"
    assert candidate(world).away_since is not None


async def test_a_node_that_nobody_knows_any_more_has_left_when_the_hub_began(world: Known) -> None:
    at_hub, _ = await came(world)
    world.nodes.disconnect("n1", at_hub)
    world.nodes.forget("n1")
    assert candidate(world) == ServingCandidate("is not known any more")
    assert world.nodes.of("n1").gone_at() is not None
