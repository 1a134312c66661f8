"""A node selector, against nodes."""

from typing import Any

import pytest

from common.objects.node_selector import choices, selects

NODE = "n1"
LABELS = {"zone": "a", "disks": "4"}


def term(key: str, operator: str, *values: str, part: str = "matchExpressions") -> dict[str, Any]:
    return {part: [{"key": key, "operator": operator, "values": list(values)}]}


def named(*names: str, operator: str = "In") -> dict[str, Any]:
    return term("metadata.name", operator, *names, part="matchFields")


def both(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    return {"matchExpressions": first["matchExpressions"] + second["matchExpressions"]}


@pytest.mark.parametrize(
    ("one", "is_selected"),
    [
        (term("zone", "In", "a", "b"), True),
        (term("zone", "In", "b"), False),
        (term("none", "In", "a"), False),
        (term("zone", "NotIn", "b"), True),
        (term("zone", "NotIn", "a"), False),
        (term("none", "NotIn", "a"), True),
        (term("zone", "Exists"), True),
        (term("none", "Exists"), False),
        (term("zone", "DoesNotExist"), False),
        (term("none", "DoesNotExist"), True),
        (term("disks", "Gt", "3"), True),
        (term("disks", "Gt", "4"), False),
        (term("disks", "Lt", "5"), True),
        (term("disks", "Lt", "4"), False),
        (term("disks", "Lt", "many"), False),
        (term("disks", "Gt"), False),
        (term("zone", "Gt", "1"), False),
        (term("none", "Lt", "1"), False),
        (named(NODE), True),
        (named("n2"), False),
        (named("n2", operator="NotIn"), True),
        (term("metadata.uid", "NotIn", "u", part="matchFields"), False),
        (term("zone", "In", "a") | named(NODE), True),
        (term("zone", "In", "a") | named("n2"), False),
        (both(term("zone", "In", "a"), term("disks", "In", "4")), True),
        (both(term("zone", "In", "a"), term("disks", "In", "5")), False),
        ({}, False),
        ({"matchExpressions": None, "matchFields": []}, False),
    ],
)
def test_a_term_selects_the_nodes_that_fulfil_all_it_requires(one: dict[str, Any], is_selected: bool) -> None:
    assert selects([one], LABELS, NODE) is is_selected


def test_one_of_several_terms_is_enough_and_none_is_not() -> None:
    assert selects([term("zone", "In", "b"), term("zone", "In", "a")], LABELS, NODE)
    assert not selects([], LABELS, NODE)


@pytest.mark.parametrize("operator", ["In", "Exists", "Gt"])
def test_a_label_of_which_nothing_is_known_is_as_the_terms_want_it(operator: str) -> None:
    terms = [term("rack", operator, "1")]
    assert not selects(terms, LABELS, NODE)
    assert selects(terms, LABELS, NODE, is_known=LABELS.__contains__)
    assert not selects([terms[0] | named("n2")], LABELS, NODE, is_known=LABELS.__contains__)


def test_an_unknown_operator_is_named() -> None:
    with pytest.raises(ValueError, match="'Near' is unknown"):
        selects([term("zone", "Near", "a")], LABELS, NODE)


def test_what_a_term_has_to_be_one_of_narrows_the_nodes_that_it_may_select() -> None:
    one = both(both(term("zone", "In", "a", "b"), term("disks", "Gt", "3")), term("rack", "In", "r1"))
    assert list(choices(one | named("n1"))) == [("zone", ["a", "b"]), ("rack", ["r1"])]
    assert list(choices(named("n1"))) == []
