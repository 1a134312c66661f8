"""The election of a serving node: sticky, preferred, taken over when it is away."""

import pytest

from cloud.claims.election import (
    Elected,
    ElectionRules,
    NodeSet,
    ServingCandidate,
    choose,
    node_set,
    others,
    patterns_of,
    why_nobody,
)

FIT = ServingCandidate()
N1 = Elected("n1", 4, 1_000.0, "first election")
USUAL = ElectionRules()


def chosen(
    present: Elected | None,
    *,
    rules: ElectionRules = USUAL,
    now: float = 100.0,
    served: float | None = None,
    **candidates: ServingCandidate,
) -> tuple[str, str] | None:
    usual = 0.0 if present is None else now
    return choose(present, candidates, rules, served=usual if served is None else served, now=now)


def test_the_first_election_takes_the_first_node_that_can_serve() -> None:
    assert chosen(None, n1=ServingCandidate("drains"), n2=FIT, n3=FIT) == ("n2", "first election")


def test_without_a_node_that_can_serve_nobody_is_elected() -> None:
    assert chosen(None, n1=ServingCandidate("is away", 0.0), n2=ServingCandidate("drains")) is None
    assert chosen(None) is None


def test_the_elected_node_stays_while_it_serves_also_when_a_preferred_one_is_back() -> None:
    assert chosen(N1, n1=FIT, n2=FIT, rules=ElectionRules(prefer=("n2",))) is None


def test_a_node_that_is_away_stays_elected_until_the_takeover() -> None:
    assert chosen(N1, n1=ServingCandidate("is away", 90.0), n2=FIT, now=104.9) is None
    assert chosen(N1, n1=ServingCandidate("is away", 90.0), n2=FIT, now=105.0) == (
        "n2",
        "edge node n1 was away for 15 s",
    )


def test_a_node_that_comes_and_goes_and_serves_never_is_replaced_as_if_it_were_away() -> None:
    back = ServingCandidate("has not reported the driver since it connected", 99.0)
    assert chosen(N1, n1=back, n2=FIT, served=86.0, now=100.0) is None
    assert chosen(N1, n1=back, n2=FIT, served=85.0, now=100.0) == ("n2", "edge node n1 was away for 15 s")


BY_LABEL = ElectionRules(candidates=("label:node-restriction.kubernetes.io/storage",))
STORAGE = {"node-restriction.kubernetes.io/storage": "nfs"}


@pytest.mark.parametrize(
    ("candidates", "rules", "why"),
    [
        ({"n1": ServingCandidate("drains"), "n2": FIT}, USUAL, "drains"),
        ({"n1": ServingCandidate("has lost the driver's socket"), "n2": FIT}, USUAL, "has lost the driver's socket"),
        ({"n2": FIT}, USUAL, "is not known any more"),
        ({"n1": FIT, "n2": FIT}, ElectionRules(candidates=("n2",)), "is not among --candidates"),
        (
            {"n1": ServingCandidate("is away", 100.0), "n2": FIT},
            ElectionRules(candidates=("n2",)),
            "is not among --candidates",
        ),
        ({"n1": FIT, "n2": ServingCandidate(labels=STORAGE)}, BY_LABEL, "is not among --candidates"),
    ],
    ids=["it stops", "its driver is gone", "forgotten", "no candidate", "away and no candidate", "its label is gone"],
)
def test_another_node_takes_over_at_once_from_one_that_will_not_serve_again(
    candidates: dict[str, ServingCandidate], rules: ElectionRules, why: str
) -> None:
    assert chosen(N1, rules=rules, **candidates) == ("n2", f"edge node n1 {why}")


def test_it_stays_elected_if_no_other_node_can_serve() -> None:
    assert chosen(N1, n1=ServingCandidate("is away", 0.0), n2=ServingCandidate("drains"), now=9_999.0) is None
    assert chosen(N1, n1=ServingCandidate("drains")) is None


@pytest.mark.parametrize(
    ("patterns", "admitted"),
    [
        (("gw-*", "n9"), ["gw-2", "n9"]),
        (("label:node-restriction.kubernetes.io/storage=nfs",), ["n9"]),
        (("label:node-restriction.kubernetes.io/storage",), ["b", "n9"]),
        (("label:node-restriction.kubernetes.io/storage=nfs", "a*"), ["a", "n9"]),
    ],
)
def test_candidates_are_names_globs_and_nodes_with_a_label(patterns: tuple[str, ...], admitted: list[str]) -> None:
    candidates = {
        "a": FIT,
        "b": ServingCandidate(labels={"node-restriction.kubernetes.io/storage": "local"}),
        "gw-2": ServingCandidate(labels={"other": "nfs"}),
        "n9": ServingCandidate(labels=STORAGE),
    }
    rules = ElectionRules(candidates=patterns)
    assert [node for node, candidate in candidates.items() if rules.admits(node, candidate)] == admitted
    assert chosen(None, rules=rules, **candidates) == (admitted[0], "first election")


def test_before_the_hub_has_read_the_labels_nothing_changes() -> None:
    rules = ElectionRules(candidates=("label:node-restriction.kubernetes.io/storage", "n2"))
    unread = ServingCandidate(labels=None)
    assert rules.admits("n1", unread)
    assert chosen(N1, n1=unread, n2=unread, rules=rules) is None
    assert chosen(N1, n1=ServingCandidate("is away", 0.0, None), n2=unread, now=9_999.0, rules=rules) is None
    assert chosen(None, n1=unread, n2=unread, now=9_999.0, rules=rules) is None
    assert why_nobody({"n1": unread}, rules) == "edge node n1 has labels that the hub has not read from the cluster yet"
    assert rules.unmatched({"n1": unread}) == []
    by_name = ElectionRules(candidates=("n1",))
    assert chosen(None, n1=unread, rules=by_name) == ("n1", "first election")


def test_patterns_that_fit_no_node_are_told() -> None:
    rules = ElectionRules(candidates=("n*", "label:zone=b"), prefer=("n7", "label:zone=a"))
    assert rules.unmatched({"n1": ServingCandidate(labels={"zone": "a"})}) == ["label:zone=b", "n7"]


def test_the_others_are_those_that_could_take_over_or_why_none_could() -> None:
    rules = ElectionRules(candidates=("n1", "n2", "n3"))
    candidates = {"n1": FIT, "n2": ServingCandidate("drains"), "n3": FIT, "x": FIT}
    assert others("n1", candidates, rules) == (["n3"], {})
    assert others("n3", {**candidates, "n1": ServingCandidate("is away", 0.0)}, rules) == (
        [],
        {"n1": "is away", "n2": "drains", "x": "is not among --candidates"},
    )


def test_the_first_pattern_of_the_preferred_ones_decides_then_the_name() -> None:
    rules = ElectionRules(prefer=("n3", "n2*"))
    assert chosen(None, n1=FIT, n2=FIT, n3=FIT, rules=rules) == ("n3", "first election")
    by_label = ElectionRules(prefer=("label:zone=b",))
    assert chosen(None, n1=FIT, n2=ServingCandidate(labels={"zone": "b"}), rules=by_label) == ("n2", "first election")
    assert chosen(N1, n0=FIT, n1=ServingCandidate("drains"), n2=FIT, n21=FIT, rules=rules) == (
        "n2",
        "edge node n1 drains",
    )


def test_the_first_election_waits_for_the_most_preferred_node_as_long_as_a_takeover_does() -> None:
    rules = ElectionRules(prefer=("n2",))
    assert chosen(None, n1=FIT, now=14.0, rules=rules) is None
    assert chosen(None, n1=FIT, n2=FIT, now=14.0, rules=rules) == ("n2", "first election")
    assert chosen(None, n1=FIT, now=15.0, rules=rules) == ("n1", "first election")


def test_the_reason_why_nobody_serves_has_each_node_but_not_too_many() -> None:
    assert why_nobody({}, USUAL) == "no edge node runs it"
    told = why_nobody({"n2": ServingCandidate("drains"), "n1": ServingCandidate("is away", 0.0)}, USUAL)
    assert told == "edge node n1 is away; edge node n2 drains"
    assert why_nobody({"n1": FIT}, ElectionRules(candidates=("n2",))) == "edge node n1 is not among --candidates"
    assert why_nobody({f"n{number}": ServingCandidate("drains") for number in range(7)}, USUAL).endswith(
        "n4 drains; and more"
    )


def test_a_node_set_is_read_from_its_text_and_has_that_text() -> None:
    assert node_set("nfs.csi=gw-1,gw-*") == NodeSet("nfs.csi", ("gw-1", "gw-*"))
    assert str(node_set("nfs.csi=gw-1,gw-*")) == "nfs.csi=gw-1,gw-*"
    labelled = "nfs.csi=n1,label:example.com/site=north,label:zone"
    assert node_set(labelled).patterns == ("n1", "label:example.com/site=north", "label:zone")
    assert node_set(labelled).label_keys() == ["example.com/site", "zone"]
    assert str(node_set(labelled)) == labelled


@pytest.mark.parametrize(
    "text",
    [
        "", "nfs.csi", "nfs.csi=", "=n1", "nfs.csi=n1,,n2", "nfs.csi=N1", "a/b=n1",
        "d=label:", "d=label:=a", "d=label:a b", "d=label:zone==a", "d=label:zone=a b", "d=zone=a", "d=Label:zone",
    ],
)  # fmt: skip
def test_a_text_that_is_no_node_set_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be DRIVER=NODE"):
        node_set(text)


def test_the_values_of_a_flag_for_one_driver_are_joined_in_their_order() -> None:
    sets = (node_set("a=n2"), node_set("b=n9"), node_set("a=n1,n3"))
    assert patterns_of("a", sets) == ("n2", "n1", "n3")
    assert patterns_of("c", sets) == ()
