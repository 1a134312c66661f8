"""Which node a call is for."""

from collections.abc import Collection

import pytest

from cloud.claims.book import Book
from cloud.nodes.fleet import Fleet
from cloud.placement.decisions import View
from cloud.placement.find import named_or_only_node
from common.errors import CallError


def route(driver: str, named_node: str, candidates: Collection[str], *, loss: str = "") -> str:
    return named_or_only_node(driver, named_node, candidates, View(Fleet({}), {"n1", "n2", "n7"}, Book(), loss=loss))


@pytest.mark.parametrize("candidates", [(), ("n1",), ("n1", "n2")])
def test_the_node_that_the_caller_names_wins(candidates: tuple[str, ...]) -> None:
    assert route("d", "n7", candidates) == "n7"


def test_the_only_node_that_runs_the_driver_is_taken() -> None:
    assert route("d", "", {"n1"}) == "n1"


def test_of_several_nodes_none_is_guessed_and_all_are_named_in_order() -> None:
    with pytest.raises(CallError, match="the call names none") as error:
        route("d", "", {"n2", "n10", "n1"})
    assert "(n1; n10, which is offline; n2)" in str(error.value)
    assert "set --placement=local or shared, or --nodeid" in str(error.value)
    assert "csi-bridge forget NODE [DRIVER]" in str(error.value)


def test_of_very_many_nodes_with_the_driver_ten_are_named() -> None:
    with pytest.raises(CallError, match=r"; n08, which is offline; n09, which is offline; and 2 more\) and"):
        route("d", "", {f"n{number:02}" for number in range(12)})


@pytest.mark.parametrize("candidates", [(), ("n1",), ("n1", "n2")])
def test_once_something_was_lost_the_only_node_is_a_guess_and_none_is_taken(candidates: tuple[str, ...]) -> None:
    with pytest.raises(CallError, match=r"lost records \(one\); set --nodeid.*csi-bridge trust"):
        route("d", "", candidates, loss="one")


def test_the_node_that_the_caller_names_is_no_guess_whatever_was_lost() -> None:
    assert route("d", "n7", ("n1",), loss="one") == "n7"
