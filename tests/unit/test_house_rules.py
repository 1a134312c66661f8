"""House rules that no tool checks."""

import ast
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


def modules() -> list[Path]:
    places = ("cli", "cloud", "common", "edge")
    return [path for path in sources() if path.relative_to(ROOT).parts[0] in places and not path.name.startswith("__")]


def test_the_architecture_names_every_file_by_its_own_first_line() -> None:
    told = (ROOT / "docs" / "architecture.md").read_text().splitlines()
    wanted = []
    for path in modules():
        first = (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n\n")[0].replace("\n", " ")
        wanted.append(f"* `{path.relative_to(ROOT)}`: {first}")
    assert [line for line in wanted if line not in told] == []
    assert [line for line in told if line.startswith("* `") and ".py`: " in line and line not in wanted] == []
