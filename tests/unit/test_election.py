"""The election of a serving node: sticky, preferred, taken over when it is away."""

from __future__ import annotations

import pytest

from cloud.election import Choice, Elected, ElectionRules, NodeSet, Seat, choose, node_set, patterns_of, why_nobody

FIT = Seat()
N1 = Elected("n1", 4, 1_000.0, "first election")
USUAL = ElectionRules()


def chosen(
    present: Elected | None,
    *,
    rules: ElectionRules = USUAL,
    now: float = 100.0,
    served: float | None = None,
    **seats: Seat,
) -> Choice | None:
    usual = 0.0 if present is None else now
    return choose(present, seats, rules, served=usual if served is None else served, now=now)


def test_the_first_election_takes_the_first_node_that_can_serve() -> None:
    assert chosen(None, n1=Seat("drains"), n2=FIT, n3=FIT) == Choice("n2", "first election")


def test_without_a_node_that_can_serve_nobody_is_elected() -> None:
    assert chosen(None, n1=Seat("is away", 0.0), n2=Seat("drains")) is None
    assert chosen(None) is None


def test_the_elected_node_stays_while_it_serves_also_when_a_preferred_one_is_back() -> None:
    assert chosen(N1, n1=FIT, n2=FIT, rules=ElectionRules(prefer=("n2",))) is None


def test_a_node_that_is_away_stays_elected_until_the_takeover() -> None:
    assert chosen(N1, n1=Seat("is away", 90.0), n2=FIT, now=104.9) is None
    assert chosen(N1, n1=Seat("is away", 90.0), n2=FIT, now=105.0) == Choice("n2", "edge node n1 was away for 15 s")


def test_a_longer_takeover_time_lets_it_stay_longer() -> None:
    rules = ElectionRules(takeover_s=60.0)
    assert chosen(N1, n1=Seat("is away", 0.0), n2=FIT, now=59.0, rules=rules) is None
    assert chosen(N1, n1=Seat("is away", 0.0), n2=FIT, now=60.0, rules=rules) == Choice(
        "n2", "edge node n1 was away for 60 s"
    )


def test_a_node_that_comes_and_goes_and_serves_never_is_replaced_as_if_it_were_away() -> None:
    back = Seat("has not reported the driver since it connected", 99.0)
    assert chosen(N1, n1=back, n2=FIT, served=86.0, now=100.0) is None
    assert chosen(N1, n1=back, n2=FIT, served=85.0, now=100.0) == Choice("n2", "edge node n1 was away for 15 s")


@pytest.mark.parametrize("why", ["drains", "has lost the driver's socket"])
def test_another_node_takes_over_at_once_from_one_that_says_that_it_stops(why: str) -> None:
    assert chosen(N1, n1=Seat(why), n2=FIT) == Choice("n2", f"edge node n1 {why}")


def test_another_node_takes_over_at_once_from_one_that_an_operator_has_forgotten() -> None:
    assert chosen(N1, n2=FIT) == Choice("n2", "edge node n1 is not known any more")


def test_another_node_takes_over_at_once_from_one_that_is_no_candidate_any_more() -> None:
    rules = ElectionRules(candidates=("n2",))
    assert chosen(N1, n1=FIT, n2=FIT, rules=rules) == Choice("n2", "edge node n1 is not among --candidates")
    assert chosen(N1, n1=Seat("is away", 100.0), n2=FIT, rules=rules) is not None


def test_it_stays_elected_if_no_other_node_can_serve() -> None:
    assert chosen(N1, n1=Seat("is away", 0.0), n2=Seat("drains"), now=9_999.0) is None
    assert chosen(N1, n1=Seat("drains")) is None


def test_candidates_are_names_and_globs() -> None:
    rules = ElectionRules(candidates=("gw-*", "n9"))
    seats = {"a": FIT, "gw-2": FIT, "n9": FIT}
    assert choose(None, seats, rules, served=0.0, now=0.0) == Choice("gw-2", "first election")
    assert [node for node in seats if rules.admits(node)] == ["gw-2", "n9"]


def test_the_first_pattern_of_the_preferred_ones_decides_then_the_name() -> None:
    rules = ElectionRules(prefer=("n3", "n2*"))
    assert chosen(None, n1=FIT, n2=FIT, n3=FIT, rules=rules) == Choice("n3", "first election")
    assert chosen(N1, n0=FIT, n1=Seat("drains"), n2=FIT, n21=FIT, rules=rules) == Choice("n2", "edge node n1 drains")


def test_the_first_election_waits_for_the_most_preferred_node_as_long_as_a_takeover_does() -> None:
    rules = ElectionRules(prefer=("n2",))
    assert chosen(None, n1=FIT, now=14.0, rules=rules) is None
    assert chosen(None, n1=FIT, n2=FIT, now=14.0, rules=rules) == Choice("n2", "first election")
    assert chosen(None, n1=FIT, now=15.0, rules=rules) == Choice("n1", "first election")


def test_the_reason_why_nobody_serves_has_each_node_but_not_too_many() -> None:
    assert why_nobody({}, USUAL) == "no edge node runs it"
    told = why_nobody({"n2": Seat("drains"), "n1": Seat("is away", 0.0)}, USUAL)
    assert told == "edge node n1 is away; edge node n2 drains"
    assert why_nobody({"n1": FIT}, ElectionRules(candidates=("n2",))) == "edge node n1 is not among --candidates"
    assert why_nobody({f"n{number}": Seat("drains") for number in range(7)}, USUAL).endswith("n4 drains; and more")


def test_a_node_set_is_read_from_its_text_and_has_that_text() -> None:
    assert node_set("nfs.csi=gw-1,gw-*") == NodeSet("nfs.csi", ("gw-1", "gw-*"))
    assert str(node_set("nfs.csi=gw-1,gw-*")) == "nfs.csi=gw-1,gw-*"


@pytest.mark.parametrize("text", ["", "nfs.csi", "nfs.csi=", "=n1", "nfs.csi=n1,,n2", "nfs.csi=N1", "a/b=n1"])
def test_a_text_that_is_no_node_set_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be DRIVER=NODE"):
        node_set(text)


def test_the_values_of_a_flag_for_one_driver_are_joined_in_their_order() -> None:
    sets = (node_set("a=n2"), node_set("b=n9"), node_set("a=n1,n3"))
    assert patterns_of("a", sets) == ("n2", "n1", "n3")
    assert patterns_of("c", sets) == ()
