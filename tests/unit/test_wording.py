"""Shortening of lists and texts for a message."""

from common.wording import first_names, join_items, shorten


def test_of_many_names_a_message_has_the_first_ones_and_the_number_of_the_others() -> None:
    assert first_names(["a", "b"]) == "a, b"
    assert first_names(list("abcdefg")) == "a, b, c, d, e and 2 more"
    assert first_names(["a", "b", "c"], most=2) == "a, b and 1 more"


def test_of_many_items_a_message_has_the_first_ten_and_the_number_of_the_others() -> None:
    assert join_items(["x is on n1", "y is on n2"]) == "x is on n1; y is on n2"
    assert join_items(list("abcdefghijkl")) == "a; b; c; d; e; f; g; h; i; j; and 2 more"


def test_a_long_text_ends_with_an_ellipsis() -> None:
    assert shorten("abcd", 4) == "abcd"
    assert shorten("abcdef", 4) == "abcd…"
