"""The comparison of Kubernetes' own storage tests: what its report says, and what counts as a fault."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.e2e.upstream import comparison
from tests.e2e.upstream.comparison import Comparison
from tests.e2e.upstream.suite import Outcome, Spec, read_report

if TYPE_CHECKING:
    import pytest


def told(name: str, state: str, why: str = "") -> dict[str, Any]:
    return {
        "ContainerHierarchyTexts": ["[sig-storage] External Storage", "[Driver: dirdriver.csi]", "[Testpattern: x]"],
        "LeafNodeType": "It",
        "LeafNodeText": name,
        "State": state,
        **({"Failure": {"Message": why}} if why else {}),
    }


def specs(**outcomes: Outcome) -> dict[str, Spec]:
    return {name: Spec(name, outcome, "why") for name, outcome in outcomes.items()}


def test_a_report_gives_the_specs_that_were_chosen_by_what_they_are_called_after_the_driver() -> None:
    report: list[dict[str, Any]] = [
        {
            "SpecReports": [
                told("should mount", "passed"),
                told("should hang", "timedout", "it took too long"),
                told("should block", "skipped", "Driver has no block"),
                told("of somebody else's", "skipped"),
                told("should come", "pending"),
                {"LeafNodeType": "BeforeSuite", "LeafNodeText": "", "ContainerHierarchyTexts": None, "State": "passed"},
            ]
        },
        {"SpecReports": None},
    ]

    assert list(read_report(report).values()) == [
        Spec("[Testpattern: x] should mount", Outcome.PASSED),
        Spec("[Testpattern: x] should hang", Outcome.FAILED, "it took too long"),
        Spec("[Testpattern: x] should block", Outcome.SKIPPED, "Driver has no block"),
    ]


def test_equal_runs_have_no_fault() -> None:
    run = specs(a=Outcome.PASSED, b=Outcome.SKIPPED)

    assert Comparison(run, run).faults() == []


def test_a_spec_that_ends_otherwise_through_the_bridge_is_a_fault_that_names_it() -> None:
    found = Comparison(specs(a=Outcome.PASSED), specs(a=Outcome.FAILED, b=Outcome.PASSED)).faults()

    assert [line.partition("\n")[0] for line in found] == [
        "a: passed direct, failed through the bridge",
        "b: absent direct, passed through the bridge",
    ]


def test_a_failure_in_both_is_a_fault_unless_it_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "EXPLANATIONS", {"known": "the machine cannot"})
    both = specs(known=Outcome.FAILED, new=Outcome.FAILED)
    found = Comparison(both, both)

    assert found.faults() == ["new: failed both ways, and nothing explains it\n    why"]
    assert "* known: the machine cannot" in found.document()


def test_the_document_has_each_spec_that_ends_differently() -> None:
    direct = specs(a=Outcome.PASSED, b=Outcome.PASSED)
    document = Comparison(direct, {**direct, **specs(a=Outcome.FAILED)}).document()

    assert "| passed | 2 | 1 |" in document
    assert "Specs that end differently: 1." in document
    assert "| a | passed | failed |" in document


def test_the_document_counts_the_other_specs_by_their_pattern_and_tells_why_the_suite_skips_some() -> None:
    run = {
        spec.name: spec
        for spec in (
            Spec("[Testpattern: PV (ext4)] volumes should store data [LinuxOnly]", Outcome.PASSED),
            Spec("[Testpattern: PV (xfs)] volumes should store data", Outcome.PASSED),
            Spec(
                "[Testpattern: PV (xfs)] subPath should be read-only", Outcome.SKIPPED, "no topology | none - skipping"
            ),
            Spec("[Testpattern: PV (xfs)] subPath should unmount", Outcome.SKIPPED, "too few nodes."),
        )
    }
    document = Comparison(run, run).document()

    assert "| PV (ext4) | volumes | 1 | 0 |" in document
    assert "| PV (xfs) | subPath, volumes | 1 | 2 |" in document
    assert "| no topology \\| none | 1 |\n| too few nodes | 1 |\n" in document
