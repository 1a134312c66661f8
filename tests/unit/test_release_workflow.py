"""The workflow that releases: it can be read, asks for no more than it needs, and releases what the tests passed."""

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
WORKFLOW = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())


def test_a_tag_alone_starts_it_and_a_release_waits_for_the_tests() -> None:
    assert WORKFLOW[True] == {"push": {"tags": ["v*"]}}  # YAML 1.1 reads `on` as a boolean
    assert WORKFLOW["permissions"] == {}
    test, release = WORKFLOW["jobs"]["test"], WORKFLOW["jobs"]["release"]
    assert test["permissions"] == {"contents": "read"}
    assert any(".ci/run" in step.get("run", "") for step in test["steps"])
    assert release["needs"] == "test"
    assert any(step.get("run") == "make release" for step in release["steps"])


def test_it_pushes_the_images_of_which_a_release_has_archives() -> None:
    (pushed,) = re.findall(r"for target in (.*); do", str(WORKFLOW["jobs"]["release"]))
    (archived,) = re.findall(r"IMAGES:-(.*)}", (ROOT / "deploy/images/build.sh").read_text())
    assert pushed == archived


def test_no_expression_stands_in_a_command() -> None:
    # What a tag or a branch is called would be a part of the program.
    commands = [step["run"] for job in WORKFLOW["jobs"].values() for step in job["steps"] if "run" in step]
    assert [command for command in commands if "${{" in command] == []
