"""The calls of each node: under way from the choice of the node to the call's end, with the last failure."""

import logging

import pytest

from cloud.node_calls import NodeCalls
from common.accounting import Account, Accounts
from common.metrics import Metrics
from common.status import Code, Origin, Status

CREATE, LIST = "/csi.v1.Controller/CreateVolume", "/csi.v1.Controller/ListVolumes"
BROKEN = Status(Code.INTERNAL, "the array is broken", Origin.VENDOR)


@pytest.fixture
def counts() -> NodeCalls:
    return NodeCalls(knows=lambda node: node in {"n1", "n2"})


def begin(method: str = CREATE, node: str = "") -> Account:
    return Accounts(Metrics(), logging.getLogger(), origin=Origin.HUB).begin("d", method, "c-1", node=node)


def end(counts: NodeCalls, status: Status | None, *, node: str = "n1", method: str = CREATE) -> None:
    account = begin(method)
    counts.goes_to(account, node)
    counts.ended(account, status)


def test_a_call_is_under_way_on_one_node_from_its_choice_to_its_end(counts: NodeCalls) -> None:
    first, second = begin(), begin()
    for account in (first, second):
        counts.goes_to(account, "n1")
    counts.goes_to(first, "n2")
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
