"""The versions of Python that pyproject.toml promises: the oldest is required, and images take the newest."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROMISED = sorted(
    tuple(map(int, found[1].split(".")))
    for each in PYPROJECT["project"]["classifiers"]
    if (found := re.fullmatch(r"Programming Language :: Python :: (\d+\.\d+)", each))
)


def test_the_oldest_is_what_the_package_and_the_linter_ask_for() -> None:
    major, minor = PROMISED[0]
    assert PYPROJECT["project"]["requires-python"] == f">={major}.{minor}"
    assert PYPROJECT["tool"]["ruff"]["target-version"] == f"py{major}{minor}"


def test_the_images_have_the_newest() -> None:
    major, minor = PROMISED[-1]
    assert f"/python:{major}.{minor}-" in (ROOT / "deploy/images/Dockerfile").read_text()
