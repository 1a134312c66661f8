"""The exposition: the metrics of a process as Prometheus reads them.

Only a process that serves /metrics imports it, with `common.observe.httpd`: the library and Python's HTTP server take 3
MB.
"""

from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Final

from prometheus_client import CollectorRegistry, Metric, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from common.csi.methods import METHODS
from common.observe.metrics import CALL_BUCKETS_S, OTHER, Metrics, VolumeStats

_CALLS: Final = "csi_plugin_operations_seconds"
_CALLS_TEXT: Final = "Container Storage Interface operation duration with gRPC error code status total"
_CLAIM_LABELS: Final = ("namespace", "persistentvolumeclaim")
# By the fields of `VolumeStats`, with the kubelet's names (pkg/kubelet/metrics/collectors/volume_stats.go).
_USAGE: Final = {
    "capacity_bytes": "Size of a mounted claim's volume.",
    "available_bytes": "Bytes of it that pods can still write.",
    "used_bytes": "Bytes of it that are used.",
    "inodes": "All inodes of a mounted claim's volume.",
    "inodes_free": "Inodes of it that are free.",
    "inodes_used": "Inodes of it that are used.",
}
_ABNORMAL_TEXT: Final = "Whether the driver finds a mounted claim's volume unhealthy: 1 or 0."
_OLDEST_LABELS: Final = ("node", "driver_name", "method_name")
_OLDEST_TEXT: Final = (
    "Age of the oldest call that an edge node has not answered, from its first try, if it is at least 10 s; of the 100 "
    "nodes with the oldest ones."
)
_LABELS: Final = ("driver_name", "method_name", "grpc_status_code")
_BOUNDS: Final = (*(str(float(bound)) for bound in CALL_BUCKETS_S), "+Inf")


def registry_of(metrics: Metrics) -> CollectorRegistry:
    """The metrics of a process, and its own memory, CPU and open files, for a scrape to collect."""
    registry = CollectorRegistry(auto_describe=True)
    ProcessCollector(registry=registry)
    registry.register(_Collector(metrics))
    return registry


class _Collector:
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        yield self._calls()
        for counter in self._metrics.counters:
            counted = CounterMetricFamily(counter.name, counter.text, labels=_labels(counter.label))
            for value, count in counter.counts.items():
                counted.add_metric(_labels(value), count, created=counter.created)
            yield counted
        for gauge in self._metrics.gauges:
            shown = GaugeMetricFamily(gauge.name, gauge.text, labels=_labels(gauge.label))
            for value, read in gauge.readers.copy().items():
                shown.add_metric(_labels(value), read())
            yield shown
        if calls := self._metrics.oldest_calls():
            oldest = GaugeMetricFamily("csi_bridge_oldest_call_seconds", _OLDEST_TEXT, labels=_OLDEST_LABELS)
            for node, driver, method, age_s in calls:
                oldest.add_metric((node, driver, method if method in METHODS else OTHER), age_s)
            yield oldest
        if claims := self._metrics.claims():
            yield from _usage(claims)

    def _calls(self) -> Metric:
        shown = HistogramMetricFamily(_CALLS, _CALLS_TEXT, labels=_LABELS)
        for values, durations in self._metrics.calls.copy().items():
            buckets = zip(_BOUNDS, accumulate(durations.counts.copy()), strict=True)
            shown.add_metric(values, [*buckets], durations.sum_s)
            shown.add_sample(f"{_CALLS}_created", dict(zip(_LABELS, values, strict=True)), durations.created)
        return shown


def _usage(claims: Mapping[tuple[str, str], VolumeStats]) -> Iterator[Metric]:
    for name, text in _USAGE.items():
        shown = GaugeMetricFamily(f"kubelet_volume_stats_{name}", text, labels=_CLAIM_LABELS)
        for claim, usage in claims.items():
            if usage.tells_usage:
                shown.add_metric(claim, getattr(usage, name))
        yield shown
    health = GaugeMetricFamily("kubelet_volume_stats_health_status_abnormal", _ABNORMAL_TEXT, labels=_CLAIM_LABELS)
    for claim, usage in claims.items():
        if usage.abnormal is not None:
            health.add_metric(claim, usage.abnormal)
    yield health


def _labels(text: str) -> list[str]:
    return [text] if text else []
