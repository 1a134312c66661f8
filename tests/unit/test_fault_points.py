"""The fault points of the code are those at which tests kill a process, and maintainers read of them."""

import ast
import functools
import re
from pathlib import Path

from common.store.fault_points import VARIABLE
from tests.kit.fault_points import ALL

ROOT = Path(__file__).parents[2]


@functools.cache
def reached() -> dict[str, str]:
    """What the code says it reaches, as patterns, and where: an f-string's values match any step."""
    found = {}
    for path in [*(ROOT / "edge").rglob("*.py"), *(ROOT / "cloud").rglob("*.py")]:
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and (point := _point(call)) is not None:
                found[_pattern(point)] = f"{path.relative_to(ROOT)}:{call.lineno}"
    return found


def _point(call: ast.Call) -> ast.expr | None:
    """The point of `reach(point)` or of `partial(reach, point)`."""
    names = [it.id if isinstance(it, ast.Name) else "" for it in (call.func, *call.args)]
    at = 1 if names[:2] == ["partial", "reach"] else 0 if names[0] == "reach" else None
    return call.args[at] if at is not None else None


def _pattern(argument: ast.expr) -> str:
    parts = argument.values if isinstance(argument, ast.JoinedStr) else [argument]
    return "".join(re.escape(str(part.value)) if isinstance(part, ast.Constant) else "[a-z]+" for part in parts)


def test_a_process_is_killed_at_every_point_that_the_code_reaches() -> None:
    untested = {
        pattern: place for pattern, place in reached().items() if not any(re.fullmatch(pattern, point) for point in ALL)
    }
    assert untested == {}


def test_no_test_waits_for_a_point_that_the_code_does_not_reach() -> None:
    patterns = reached()
    assert [point for point in ALL if not any(re.fullmatch(pattern, point) for pattern in patterns)] == []


def test_the_page_on_recovery_names_the_module_and_dies_at_a_point_of_it() -> None:
    _, _, page = (ROOT / "docs" / "recovery.md").read_text().partition("## A death at every point")
    assert "`common/store/fault_points.py`" in page
    assert [point for point in re.findall(rf"{VARIABLE}=([a-z.-]+)", page) if point in ALL] == ["stage.before-call"]
