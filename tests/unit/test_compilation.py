"""What the compilation relies on, where the interpreter would not notice."""

import ast
from pathlib import Path

import pytest
from click.testing import CliRunner

import common.session
from cli.main import cli
from common.version import VERSION
from compilation import COMPILED

ROOT = Path(__file__).parents[2]


def test_each_compiled_module_is_there_and_is_listed_once() -> None:
    assert [path for path in COMPILED if not (ROOT / path).is_file()] == []
    assert len(set(COMPILED)) == len(COMPILED)


@pytest.mark.parametrize("path", COMPILED)
def test_no_function_catches_errors_of_two_types_under_one_name(path: str) -> None:
    """A variable has one type when it is compiled: the second error would end in a TypeError."""
    for function in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            clauses = [each for each in ast.walk(function) if isinstance(each, ast.ExceptHandler) and each.name]
            caught = {(each.name, ast.unparse(each.type) if each.type else "") for each in clauses}
            assert len({name for name, _ in caught}) == len(caught), function.name


@pytest.mark.parametrize("path", COMPILED)
def test_no_slice_has_a_call_with_an_effect(path: str) -> None:
    """mypyc may make it twice."""
    slices = [each for each in ast.walk(ast.parse((ROOT / path).read_text())) if isinstance(each, ast.Slice)]
    calls = [each for it in slices for each in ast.walk(it) if isinstance(each, ast.Call | ast.Await | ast.NamedExpr)]
    assert {ast.unparse(each).partition("(")[0] for each in calls} <= {"len"}


def test_the_version_tells_whether_the_call_path_is_compiled() -> None:
    form = "compiled" if str(common.session.__file__).endswith(".so") else "interpreted"
    assert CliRunner().invoke(cli, ["--version"]).output == f"csi-bridge, version {VERSION}, {form}\n"
