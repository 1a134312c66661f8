"""Pages and their tokens."""

from dataclasses import dataclass

import grpc
import pytest

from examples.dirdriver.errors import CsiError
from tests.kit.testdriver import paging


@dataclass(frozen=True)
class Entry:
    seq: int


def listed(entries: list[Entry], max_entries: int, token: str) -> tuple[list[int], str]:
    """What a service does with the three functions."""
    length = paging.page_length(max_entries)
    rest = [entry for entry in entries if entry.seq > paging.start_after(token)]
    page, following = paging.cut(rest, length)
    return [entry.seq for entry in page], following


def test_pages_follow_each_other_until_the_token_is_empty() -> None:
    entries = [Entry(seq) for seq in (3, 5, 8, 9, 20)]

    first, token = listed(entries, 2, "")
    second, token = listed(entries, 2, token)
    third, end = listed(entries, 2, token)

    assert (first, second, third, end) == ([3, 5], [8, 9], [20], "")


def test_what_is_deleted_and_created_between_pages_makes_no_entry_appear_twice() -> None:
    _page, token = listed([Entry(1), Entry(2), Entry(3)], 2, "")

    assert listed([Entry(3), Entry(4)], 0, token) == ([3, 4], "")


def test_a_full_last_page_has_no_token() -> None:
    assert listed([Entry(1), Entry(2)], 2, "") == ([1, 2], "")


def test_a_caller_without_a_limit_gets_a_page_that_stays_below_the_size_of_a_grpc_message() -> None:
    page, token = listed([Entry(seq) for seq in range(1, 10_000)], 0, "")

    assert len(page) == paging.PAGE_LIMIT
    assert token == f"after-{paging.PAGE_LIMIT}"


@pytest.mark.parametrize("token", ["invalid-token", "after-", "after--1", "17", "after-1 "])
def test_a_token_that_is_not_ours_is_aborted(token: str) -> None:
    with pytest.raises(CsiError) as failure:
        paging.start_after(token)

    assert failure.value.code is grpc.StatusCode.ABORTED


def test_a_negative_limit_is_an_invalid_argument() -> None:
    with pytest.raises(CsiError) as failure:
        paging.page_length(-1)

    assert failure.value.code is grpc.StatusCode.INVALID_ARGUMENT
