"""The chart's alerts: Prometheus takes them, and each fires in its situation alone."""

import subprocess
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_prometheus_takes_the_alerts_and_each_fires_in_its_situation_alone(peer: Callable[[str], Path]) -> None:
    for words in (
        ("check", "rules", "--lint=all", "--lint-fatal", ROOT / "deploy/chart/files/alerts.yaml"),
        ("test", "rules", Path(__file__).with_name("alerts_test.yaml")),
    ):
        ended = subprocess.run([peer("promtool"), *words], capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stdout + ended.stderr
