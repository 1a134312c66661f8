"""House rules that no tool checks."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def sources() -> list[Path]:
    places = ("bench", "cli", "cloud", "common", "edge", "examples", "tests")
    return [path for place in places for path in (ROOT / place).rglob("*.py") if "_pb2" not in path.name]


def test_every_exception_from_the_type_checker_has_its_reason() -> None:
    bare = re.compile(r"#\s*type: ignore(\[[^]]*\])?\s*$")
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in sources()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if bare.search(line)
    ]
    assert found == []
