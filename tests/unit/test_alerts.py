"""The chart's alerts: each asks for metrics that exist, and names the place that says what to do."""

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
(GROUP,) = yaml.safe_load((ROOT / "deploy/chart/files/alerts.yaml").read_text())["groups"]


def test_each_metric_of_an_alert_is_in_the_reference() -> None:
    known = set(re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/reference.md").read_text(), re.MULTILINE))
    asked = {name for rule in GROUP["rules"] for name in re.findall(r"\bcsi_\w+", rule["expr"])}
    assert {name.removesuffix("_count") for name in asked} - known == set()


def test_each_alert_has_a_severity_a_sentence_and_a_place_to_read() -> None:
    for rule in GROUP["rules"]:
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert rule["annotations"]["summary"].endswith(".")
        # tests/unit/test_docs_links.py finds out whether the heading is there
        assert re.fullmatch(r"docs/\w+\.md#[\w-]+", rule["annotations"]["runbook"])
