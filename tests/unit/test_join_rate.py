"""The join rate: shared fairly between addresses only when it is scarce."""

from cloud.trust.join_rate import BURST, CONNECTIONS_A_SECOND, MOST_ADDRESSES, JoinRate


def test_a_fleet_behind_one_address_gets_half_of_the_burst_and_then_the_rate() -> None:
    rate = JoinRate(0.0)
    assert sum(rate.admits("nat", 0.0) for _ in range(1_000)) >= BURST / 2
    tries = [rate.admits("nat", step / 100) for step in range(1_000)]
    assert sum(tries) >= 0.9 * CONNECTIONS_A_SECOND * 10


def test_an_address_that_floods_leaves_room_for_others() -> None:
    rate = JoinRate(0.0)
    admitted = 0
    for step in range(10_000):
        now = step / 1_000
        rate.admits("flood", now)
        if step % 1_000 == 999:
            admitted += rate.admits("node", now)
    assert admitted == 10


def test_no_more_than_the_rate_is_admitted_whatever_the_addresses() -> None:
    rate = JoinRate(0.0)
    admitted = sum(rate.admits(f"host {step}", step / 1_000) for step in range(10_000))
    assert admitted <= BURST + 10 * CONNECTIONS_A_SECOND


def test_the_memory_of_addresses_is_bounded() -> None:
    rate = JoinRate(0.0)
    for number in range(MOST_ADDRESSES + 100):
        rate.admits(f"host {number}", 0.0)
    assert len(rate._addresses) == MOST_ADDRESSES
