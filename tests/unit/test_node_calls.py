"""The calls of each node: under way from the choice of the node to the call's end, with the last failure."""

import logging
from collections.abc import Collection

import pytest

from cloud.calls.node_calls import NodeCalls
from common.observe.accounting import Account, Accounts
from common.observe.metrics import Metrics
from common.status import Code, Origin, Status

CREATE, LIST = "/csi.v1.Controller/CreateVolume", "/csi.v1.Controller/ListVolumes"
BROKEN = Status(Code.INTERNAL, "the array is broken", Origin.VENDOR)


class Clock:
    """The monotonic clock."""

    now = 1_000.0


class Known:
    """The nodes of a hub (`cloud.nodes.edge_nodes.Nodes`)."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names

    def knows(self, name: str) -> bool:
        return name in self._names


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def counts(clock: Clock) -> NodeCalls:
    return NodeCalls(Known({"n1", "n2"}), now=lambda: clock.now)  # type: ignore[arg-type]  # the part of the nodes that is asked


def begin(method: str = CREATE, node: str = "", at: float = 1_000.0) -> Account:
    account = Account(
        Accounts(Metrics(), logging.getLogger(), origin=Origin.HUB), "d", method, "c-1", node, timeout_s=None
    )
    account.began = at
    return account


def oldest(counts: NodeCalls, node: str = "n1") -> tuple[str, int] | None:
    found = counts.oldest(node)
    return (found.method, found.age_s) if found is not None else None


def give_up(counts: NodeCalls, request: int, at: float, *, node: str = "n1") -> None:
    """A caller leaves without an answer."""
    account = begin(at=at)
    counts.goes_to(account, node)
    counts.ended(account, None, request=request, is_open=True)


def end(counts: NodeCalls, status: Status | None, *, node: str = "n1", method: str = CREATE, request: int = 0) -> None:
    account = begin(method)
    counts.goes_to(account, node)
    counts.ended(account, status, request=request)


def test_a_call_is_under_way_on_one_node_from_its_choice_to_its_end(counts: NodeCalls) -> None:
    first, second = begin(), begin()
    counts.goes_to(first, "n2")
    counts.goes_to(second, "n1")
    assert (first.node, counts.under_way("n1"), counts.under_way("n2")) == ("n2", 1, 1)
    counts.ended(first, Status(Code.OK))
    counts.ended(second, Status(Code.OK))
    assert (counts.under_way("n1"), counts.under_way("n2")) == (0, 0)


def test_a_call_that_went_nowhere_takes_no_other_call_out_of_the_count(counts: NodeCalls) -> None:
    counts.goes_to(begin(), "n1")
    counts.ended(begin(node="n1"), None)
    assert counts.under_way("n1") == 1


def test_a_failure_is_told_in_its_own_words(counts: NodeCalls) -> None:
    end(counts, BROKEN)
    failure = counts.last_error("n1")
    assert (failure.code, failure.message, failure.by) == ("INTERNAL", "the array is broken", "vendor")


@pytest.mark.parametrize(
    ("failed", "later", "node", "ends"),
    [
        (CREATE, LIST, "n1", False),
        (CREATE, CREATE, "n2", False),
        (CREATE, CREATE, "n1", True),
        (CREATE, "/csi.v1.Controller/DeleteVolume", "n1", True),
        (LIST, LIST, "n1", True),
    ],
)
def test_a_failure_stays_until_a_success_that_means_as_much(
    counts: NodeCalls, failed: str, later: str, node: str, *, ends: bool
) -> None:
    end(counts, BROKEN, method=failed)
    end(counts, Status(Code.OK), node=node, method=later)
    assert (counts.last_error("n1") is None) is ends


def test_a_call_that_its_caller_left_says_nothing_of_the_node(counts: NodeCalls) -> None:
    end(counts, None)
    assert counts.last_error("n1") is None
    end(counts, BROKEN)
    end(counts, None)
    assert counts.last_error("n1") is not None


def test_a_failure_at_a_node_that_does_not_exist_is_not_kept(counts: NodeCalls) -> None:
    end(counts, BROKEN, node="invented")
    assert counts.last_error("invented") is None


def test_a_call_that_waits_on_a_hung_driver_ages_from_its_first_try_until_the_node_answers(
    counts: NodeCalls, clock: Clock
) -> None:
    assert oldest(counts) is None
    for at in (1_000.0, 1_020.0):
        give_up(counts, 7, at)
        clock.now = at + 10
    assert oldest(counts) == (CREATE, 30)
    again, other = begin(at=1_050.0), begin(LIST, at=1_040.0)
    for account in (again, other):
        counts.goes_to(account, "n1")
    clock.now = 1_060.0
    assert (oldest(counts), oldest(counts, "n2")) == ((CREATE, 60), None)
    assert counts.slow() == [("n1", "d", CREATE, 60)]

    counts.ended(again, Status(Code.UNAVAILABLE, "n1 is offline", Origin.HUB), request=7)
    assert oldest(counts) == (CREATE, 60)
    end(counts, Status(Code.ABORTED, "", Origin.VENDOR), request=8)
    assert oldest(counts) == (CREATE, 60)
    end(counts, Status(Code.ABORTED, "", Origin.VENDOR), request=7)
    assert oldest(counts) == (LIST, 20)
    counts.ended(other, Status(Code.OK))
    assert (oldest(counts), counts.slow()) == (None, [])


def test_of_unanswered_calls_a_node_has_a_limited_number_for_ten_minutes_and_a_young_one_is_not_slow(
    counts: NodeCalls, clock: Clock
) -> None:
    for number in range(200):
        give_up(counts, number, 1_000.0 + number)
        clock.now = 1_000.0 + number
    give_up(counts, 1, 0.0, node="invented")
    assert counts.oldest("invented") is None
    assert oldest(counts) == (CREATE, 99)
    give_up(counts, 1, 1_195.0, node="n2")
    assert [node for node, *_ in counts.slow()] == ["n1"]
    clock.now += 601
    assert oldest(counts) is None


def test_of_nodes_with_old_calls_the_hundred_oldest_are_shown(clock: Clock) -> None:
    nodes = [f"n{number}" for number in range(150)]
    counts = NodeCalls(Known(nodes), now=lambda: clock.now)  # type: ignore[arg-type]  # the part of the nodes that is asked
    for number in range(150):
        give_up(counts, 1, float(number), node=f"n{number}")
    assert [node for node, *_ in counts.slow()] == [f"n{number}" for number in range(100)]
    counts.forget("n0")
    assert counts.slow()[0][0] == "n1"
