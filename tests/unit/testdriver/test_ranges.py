"""Arithmetic of sorted ranges."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from tests.kit.testdriver import ranges
from tests.kit.testdriver.ranges import Range

SORTED = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 10))).map(
    lambda pairs: sorted(Range(start, start + length) for start, length in pairs)
)


def bytes_of(items: list[Range]) -> set[int]:
    """Every byte in the ranges: the slow and obvious way."""
    return {position for item in items for position in range(item.start, item.end)}


def in_order(items: list[Range]) -> bool:
    return all(first.end < second.start for first, second in itertools.pairwise(items))


@given(SORTED)
def test_merging_keeps_every_byte_and_leaves_gaps_between_the_ranges(items: list[Range]) -> None:
    merged = list(ranges.merged(items))

    assert bytes_of(merged) == bytes_of(items)
    assert in_order(merged)


@given(SORTED, SORTED)
def test_a_union_holds_what_is_in_either(first: list[Range], second: list[Range]) -> None:
    union = list(ranges.union(first, second))

    assert bytes_of(union) == bytes_of(first) | bytes_of(second)
    assert in_order(union)


@given(SORTED, st.integers(0, 80))
def test_starting_at_an_offset_leaves_what_lies_behind_it(items: list[Range], offset: int) -> None:
    items = list(ranges.merged(items))

    assert bytes_of(list(ranges.starting_at(items, offset))) == {byte for byte in bytes_of(items) if byte >= offset}


def test_a_stream_that_is_resumed_at_the_next_byte_repeats_nothing_and_leaves_nothing_out() -> None:
    whole = list(ranges.comb(10))
    begun = whole[:4]

    assert begun + list(ranges.starting_at(ranges.comb(10), begun[-1].end)) == whole


def test_batches_hold_all_ranges_in_order() -> None:
    whole = list(ranges.comb(7))

    batches = list(ranges.batches(ranges.comb(7), 3))

    assert [len(batch) for batch in batches] == [3, 3, 1]
    assert [item for batch in batches for item in batch] == whole


def test_no_ranges_make_one_empty_batch() -> None:
    assert list(ranges.batches([], 3)) == [[]]


def test_exactly_full_batches_are_not_followed_by_an_empty_one() -> None:
    assert [len(batch) for batch in ranges.batches(ranges.comb(6), 3)] == [3, 3]


def test_a_comb_has_a_hole_after_each_block_and_ends_within_its_size() -> None:
    comb = list(ranges.comb(200_000))

    assert len(comb) == 200_000
    assert comb[1] == Range(8192, 12288)
    assert comb[-1].end <= ranges.comb_size(200_000)
