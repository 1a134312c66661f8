"""Handshakes: below the limit any number, above it the fullest address loses one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.links.handshakes import Handshakes, group_of


def filled(*addresses: str, most: int | None = None) -> Handshakes[str]:
    """Handshakes `a0`, `a1`, … of these addresses, begun at the times 0, 1, …"""
    shakes: Handshakes[str] = Handshakes(most or len(addresses), share_s=100.0)
    counts: dict[str, int] = {}
    for now, address in enumerate(addresses):
        number = counts[address] = counts.get(address, -1) + 1
        assert shakes.add(f"{address}{number}", address, float(now)) is None
    return shakes


def test_below_the_limit_one_address_has_any_number() -> None:
    assert len(filled(*"a" * 50)) == 50


def test_above_the_limit_a_newcomer_takes_a_place_of_the_fullest_address() -> None:
    shakes = filled(*"aaab")
    assert shakes.add("c0", "c", 5.0) == "a2"
    assert len(shakes) == 4


def test_the_fullest_address_loses_its_own_newcomer_while_its_others_are_young() -> None:
    shakes = filled(*"aaab")
    assert shakes.add("a3", "a", 5.0) == "a3"


def test_a_handshake_that_has_had_its_share_of_time_makes_room_first() -> None:
    shakes = filled(*"aaab")
    assert shakes.add("a3", "a", 100.0) == "a0"
    assert shakes.add("a4", "a", 100.5) == "a4"


def test_of_equals_the_newcomer_loses() -> None:
    shakes = filled(*"abc")
    assert shakes.add("d0", "d", 5.0) == "d0"
    assert shakes.add("a1", "a", 5.0) == "a1"


def test_a_removed_one_makes_room_and_is_removed_once() -> None:
    shakes = filled(*"aab")
    shakes.remove("a0")
    shakes.remove("a0")
    assert shakes.add("c0", "c", 5.0) is None


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.booleans()), max_size=60))
def test_the_limit_holds_and_the_loser_is_always_of_a_fullest_address(steps: list[tuple[str, bool]]) -> None:
    shakes: Handshakes[tuple[str, int]] = Handshakes(5, share_s=10.0)
    open_: list[tuple[str, int]] = []
    for now, (address, leaves) in enumerate(steps):
        if leaves and open_:
            shakes.remove(open_.pop(0))
            continue
        open_.append((address, now))
        sizes = {name: sum(one[0] == name for one in open_) for name in "abcd"}
        lost = shakes.add((address, now), address, float(now))
        assert (lost is None) == (len(open_) <= 5)
        if lost is not None:
            assert sizes[lost[0]] == max(sizes.values())
            open_.remove(lost)
        assert len(shakes) == len(open_)


@pytest.mark.parametrize(
    ("host", "group"),
    [
        ("10.0.0.7", "10.0.0.7"),
        ("::ffff:10.0.0.7", "10.0.0.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::1", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::1"),
        ("?", "?"),
    ],
)
def test_an_ipv4_address_is_a_group_and_an_ipv6_network_is(host: str, group: str) -> None:
    assert group_of(host) == group
