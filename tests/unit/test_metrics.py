"""What Prometheus reads: names, labels and buckets, and that no peer can make the labels grow."""

import logging
from dataclasses import replace
from unittest import mock

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from common.csi.methods import METHODS
from common.messages import Reason
from common.observe.accounting import Account, Accounts
from common.observe.exposition import registry_of
from common.observe.metrics import CALL_BUCKETS_S, MOST_DRIVERS, Metrics, VolumeStats, go_code_name
from common.status import Code, Origin, Status

CREATE = "/csi.v1.Controller/CreateVolume"
CALLS = "csi_plugin_operations_seconds"


def calls(metrics: Metrics, driver: str, method: str, code: str, *, sample: str = "count", **more: str) -> float | None:
    labels = {"driver_name": driver, "method_name": method, "grpc_status_code": code, **more}
    return registry_of(metrics).get_sample_value(f"{CALLS}_{sample}", labels)


def observe(metrics: Metrics, driver: str, method: str, code: int, duration_s: float) -> None:
    """Let a call end after so long."""
    account = Account(
        Accounts(metrics, logging.getLogger("csi_bridge.test"), origin=Origin.HUB),
        driver,
        method,
        "c-1",
        "",
        timeout_s=None,
    )
    account.began = 0.0
    with mock.patch("common.observe.accounting.time.monotonic", return_value=duration_s):
        account.end(Status(code))


def test_a_call_is_counted_as_csi_lib_utils_does() -> None:
    metrics = Metrics()
    observe(metrics, "d.example", CREATE, Code.DEADLINE_EXCEEDED, 10.5)
    assert calls(metrics, "d.example", CREATE, "DeadlineExceeded") == 1
    assert calls(metrics, "d.example", CREATE, "DeadlineExceeded", sample="sum") == 10.5
    assert calls(metrics, "d.example", CREATE, "DeadlineExceeded", sample="bucket", le="10.0") == 0
    assert calls(metrics, "d.example", CREATE, "DeadlineExceeded", sample="bucket", le="15.0") == 1


def test_the_buckets_are_those_of_csi_lib_utils() -> None:
    assert CALL_BUCKETS_S == (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600)


def test_a_scrape_reads_as_if_prometheus_own_classes_had_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 1_800_000_000.25)
    metrics, theirs, of_links = Metrics(), CollectorRegistry(), CollectorRegistry()
    labels = ("driver_name", "method_name", "grpc_status_code")
    text = "Container Storage Interface operation duration with gRPC error code status total"
    histogram = Histogram(CALLS, text, labels, buckets=CALL_BUCKETS_S, registry=theirs)
    link_ups = Counter("csi_bridge_link_ups_total", "Sessions begun.", registry=of_links)
    for name, duration_s in [("d", 0.0), ("d", 0.1), ("d", 0.11), ("e", 600), ("e", 601), ("d", 2.5)]:
        observe(metrics, name, CREATE, 0, duration_s)
        histogram.labels(name, CREATE, "OK").observe(duration_s)
    for _ in range(3):
        metrics.link_ups.inc()
        link_ups.inc()
    scraped = generate_latest(registry_of(metrics))
    assert generate_latest(theirs) in scraped
    for line in generate_latest(of_links).splitlines():
        assert line in scraped.splitlines()


@pytest.mark.parametrize(
    ("code", "name"),
    [
        (0, "OK"),
        (1, "Canceled"),
        (2, "Unknown"),
        (8, "ResourceExhausted"),
        (14, "Unavailable"),
        (16, "Unauthenticated"),
    ],
)
def test_a_code_is_named_as_go_names_it(code: int, name: str) -> None:
    assert go_code_name(code) == name


def test_a_call_before_the_driver_is_known_counts_as_unknown_driver() -> None:
    metrics = Metrics()
    for _ in range(2):
        observe(metrics, "", CREATE, 0, 0.2)
    assert calls(metrics, "unknown-driver", CREATE, "OK") == 2


def test_methods_and_codes_that_nobody_knows_share_one_label() -> None:
    metrics = Metrics()
    for number in range(1000):
        observe(metrics, "d", f"/csi.v1.Controller/Imagined{number}", 1000 + number, 0.2)
    assert calls(metrics, "d", "other", "other") == 1000
    assert kept(metrics) == 0


def test_drivers_beyond_the_limit_share_one_label() -> None:
    metrics = Metrics()
    for number in range(MOST_DRIVERS + 10):
        observe(metrics, f"d{number}", CREATE, 0, 0.2)
    assert calls(metrics, f"d{MOST_DRIVERS - 1}", CREATE, "OK") == 1
    assert calls(metrics, f"d{MOST_DRIVERS}", CREATE, "OK") is None
    assert calls(metrics, "other", CREATE, "OK") == 10
    assert kept(metrics) == MOST_DRIVERS


def kept(metrics: Metrics) -> int:
    return len(metrics.durations)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_of_the_contract_has_its_own_label(method: str) -> None:
    metrics = Metrics()
    observe(metrics, "d", method, 0, 0.2)
    assert calls(metrics, "d", method, "OK") == 1


def test_the_links_are_counted() -> None:
    metrics = Metrics()
    metrics.link_ups.inc()
    metrics.redials.inc()
    metrics.link_down("peer-silent")
    metrics.link_down("a reason that nobody planned for")
    metrics.connected_nodes = 2
    metrics.calls_in_flight += 1
    value = registry_of(metrics).get_sample_value
    assert value("csi_bridge_link_ups_total") == 1
    assert value("csi_bridge_redials_total") == 1
    assert value("csi_bridge_link_downs_total", {"reason": "peer-silent"}) == 1
    assert value("csi_bridge_link_downs_total", {"reason": "other"}) == 1
    assert value("csi_bridge_link_downs_total", {"reason": "link-lost"}) == 0
    assert value("csi_bridge_connected_nodes") == 2
    assert value("csi_bridge_calls_in_flight") == 1


def test_every_reason_of_the_wire_has_a_series_from_the_start() -> None:
    value = registry_of(Metrics()).get_sample_value
    for reason in (*Reason, "other"):
        assert value("csi_bridge_link_downs_total", {"reason": reason}) == 0


def test_publications_that_a_runtime_mounts_are_counted_by_who_told_it() -> None:
    metrics = Metrics()
    metrics.deferred.inc("agent")
    name = "csi_bridge_deferred_publications_total"
    found = {by: registry_of(metrics).get_sample_value(name, {"by": by}) for by in ("agent", "driver")}
    assert found == {"agent": 1, "driver": 0}


def test_the_process_itself_is_measured() -> None:
    assert (registry_of(Metrics()).get_sample_value("process_resident_memory_bytes") or 0) > 0


USAGE = VolumeStats(capacity_bytes=10, available_bytes=7, used_bytes=3, inodes=20, inodes_free=15, inodes_used=5)


def test_usage_of_volumes_is_shown_with_the_kubelets_names_and_labels() -> None:
    metrics = Metrics()
    metrics.claims = lambda: {("shop", "data"): USAGE, ("shop", "logs"): replace(USAGE, abnormal=True)}
    shown = [line for line in generate_latest(registry_of(metrics)).decode().splitlines() if line.startswith("kubelet")]
    # A kubelet's lines (pkg/kubelet/metrics/collectors/volume_stats.go).
    assert shown == [
        'kubelet_volume_stats_capacity_bytes{namespace="shop",persistentvolumeclaim="data"} 10.0',
        'kubelet_volume_stats_capacity_bytes{namespace="shop",persistentvolumeclaim="logs"} 10.0',
        'kubelet_volume_stats_available_bytes{namespace="shop",persistentvolumeclaim="data"} 7.0',
        'kubelet_volume_stats_available_bytes{namespace="shop",persistentvolumeclaim="logs"} 7.0',
        'kubelet_volume_stats_used_bytes{namespace="shop",persistentvolumeclaim="data"} 3.0',
        'kubelet_volume_stats_used_bytes{namespace="shop",persistentvolumeclaim="logs"} 3.0',
        'kubelet_volume_stats_inodes{namespace="shop",persistentvolumeclaim="data"} 20.0',
        'kubelet_volume_stats_inodes{namespace="shop",persistentvolumeclaim="logs"} 20.0',
        'kubelet_volume_stats_inodes_free{namespace="shop",persistentvolumeclaim="data"} 15.0',
        'kubelet_volume_stats_inodes_free{namespace="shop",persistentvolumeclaim="logs"} 15.0',
        'kubelet_volume_stats_inodes_used{namespace="shop",persistentvolumeclaim="data"} 5.0',
        'kubelet_volume_stats_inodes_used{namespace="shop",persistentvolumeclaim="logs"} 5.0',
        'kubelet_volume_stats_health_status_abnormal{namespace="shop",persistentvolumeclaim="logs"} 1.0',
    ]


def test_a_volume_whose_driver_tells_only_its_health_has_no_usage_of_zero() -> None:
    metrics = Metrics()
    metrics.claims = lambda: {("shop", "data"): VolumeStats(abnormal=False)}
    labels = {"namespace": "shop", "persistentvolumeclaim": "data"}
    shown = registry_of(metrics)
    assert shown.get_sample_value("kubelet_volume_stats_capacity_bytes", labels) is None
    assert shown.get_sample_value("kubelet_volume_stats_health_status_abnormal", labels) == 0


def test_a_node_that_owes_an_answer_is_shown_with_the_driver_and_the_method_if_csi_has_it() -> None:
    metrics, name = Metrics(), "csi_bridge_oldest_call_seconds"
    assert name.encode() not in generate_latest(registry_of(metrics))
    metrics.oldest_calls = lambda: [("n1", "d.example", CREATE, 60), ("n2", "d.example", "/invented", 30)]
    shown = [line for line in generate_latest(registry_of(metrics)).decode().splitlines() if line.startswith(name)]
    assert shown == [
        f'{name}{{driver_name="d.example",method_name="{CREATE}",node="n1"}} 60.0',
        f'{name}{{driver_name="d.example",method_name="other",node="n2"}} 30.0',
    ]


def test_a_process_without_volumes_does_not_show_the_kubelets_names() -> None:
    assert b"kubelet" not in generate_latest(registry_of(Metrics()))
