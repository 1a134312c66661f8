"""The chart's monitoring: Prometheus takes the alerts, each fires in its situation alone, and the chart has them."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]


def test_prometheus_takes_the_alerts_and_each_fires_in_its_situation_alone(peer: Callable[[str], Path]) -> None:
    for words in (
        ("check", "rules", "--lint=all", "--lint-fatal", ROOT / "deploy/chart/files/alerts.yaml"),
        ("test", "rules", Path(__file__).with_name("alerts_test.yaml")),
    ):
        ended = subprocess.run([peer("promtool"), *words], capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stdout + ended.stderr


def test_the_chart_has_the_alerts_as_they_are_and_scrapes_ports_that_its_pods_have(peer: Callable[[str], Path]) -> None:
    values = {
        "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "alertRules": {"enabled": True, "labels": {"role": "alerts"}},
        "drivers": [{"name": "disk.example", "shortName": "disk", "sidecars": {"provisioner": {}}}],
    }
    command = [
        peer("helm"),
        "template",
        "csi-bridge",
        ROOT / "deploy/chart",
        "--namespace",
        "csi-bridge",
        "--values",
        "-",
    ]
    ended = subprocess.run(command, input=json.dumps(values), capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    made = {(it["kind"], it["metadata"]["name"]): it for it in yaml.safe_load_all(ended.stdout) if it}

    rules = made["PrometheusRule", "csi-bridge"]
    assert rules["metadata"]["labels"] == {"role": "alerts"}
    assert rules["spec"] == yaml.safe_load((ROOT / "deploy/chart/files/alerts.yaml").read_text())

    monitor = made["PodMonitor", "csi-bridge"]
    assert monitor["metadata"]["labels"] == {"release": "prometheus"}
    scraped = {it["port"] for it in monitor["spec"]["podMetricsEndpoints"]}
    (components,) = (it["values"] for it in monitor["spec"]["selector"]["matchExpressions"])
    for name, component in {"csi-bridge-hub": "hub", "csi-bridge-driver-disk": "driver"}.items():
        template = made["StatefulSet", name]["spec"]["template"]
        ports = [port for it in template["spec"]["containers"] for port in it.get("ports", [])]
        assert len([port for port in ports if port["name"] in scraped]) == 1
        assert template["metadata"]["labels"].items() >= monitor["spec"]["selector"]["matchLabels"].items()
        assert template["metadata"]["labels"]["app.kubernetes.io/component"] == component
        assert component in components
