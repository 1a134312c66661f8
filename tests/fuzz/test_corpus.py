"""Each input of the fuzzer's corpus, the crashes that it once found among them, passes its target."""

from pathlib import Path

import pytest

from tests.fuzz.targets import TARGETS

CORPUS = Path(__file__).parent / "corpus"
CASES = sorted(path for path in CORPUS.glob("*/*") if path.is_file())


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.parent.name}/{case.name}")
def test_an_input_of_the_corpus_breaks_nothing(case: Path) -> None:
    TARGETS[case.parent.name](case.read_bytes())


def test_every_target_has_a_corpus_and_every_corpus_a_target() -> None:
    assert {case.parent.name for case in CASES} == set(TARGETS)
