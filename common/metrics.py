"""A metric: a number of one process for Prometheus.

Rules:
* A label's value comes from a closed set; any other value counts as `other`. Nodes, volumes, addresses and messages are
  in the log, never in labels.
* Calls have the name, labels and buckets of csi-lib-utils (metrics/metrics.go), so dashboards for CSI drivers work. All
  other metrics are named `csi_bridge_…`, with the unit at the end.
* Every process has a registry of its own, which the caller passes in. So two processes in one test do not mix.
* A call is counted in plain numbers, which a scrape reads: it costs a dictionary look-up and a few additions. Only the
  event loop's thread counts calls; a scrape in another thread may see a call in one number and not yet in the next.
"""

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Metric, ProcessCollector

from common.csi.methods import METHODS
from common.messages import Reason
from common.status import Code

CALL_BUCKETS_S: Final = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600)
"""The buckets of csi-lib-utils (metrics/metrics.go, operationsLatencyBuckets)."""

MOST_DRIVERS: Final = 64
"""The most driver names in labels: they come from the other end of a link. Further ones count as `other`."""

OTHER: Final = "other"

_GO_NAMES: Final = {int(code): code.name.title().replace("_", "") for code in Code} | {0: "OK", 1: "Canceled"}
"""Codes as Go prints them (grpc/codes, String): csi-lib-utils uses these in its label."""


LINK_DOWN_REASONS: Final = (*(str(reason) for reason in Reason), OTHER)
"""The values of the label `reason`: the reasons for a session's end, and `other` for a newer peer's words."""


CONFLICTS: Final = ("name", "segment", "unreadable", "capability", "id")
"""The values of the label `cause`: why the hub refused a node's report or answer, or a call to the node."""

LEAKS: Final = ("orphan", "ghost", "stray", "doubt")
"""The values of the label `leak`: see `csi-bridge audit`."""

POLICY_DENIALS: Final = ("report", "call")
"""The values of the label `what`: a node's report of a driver, and a call or watch of a proxy driver."""


class _Durations:
    """The durations of the calls with one set of labels."""

    __slots__ = ("counts", "created", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(CALL_BUCKETS_S) + 1)  # the last one: longer than all bounds
        self.sum_s = 0.0
        self.created = time.time()

    def observe(self, duration_s: float) -> None:
        """Count one call."""
        self.counts[bisect_left(CALL_BUCKETS_S, duration_s)] += 1
        self.sum_s += duration_s


class CallDurations:
    """The histogram of the calls' durations, for a registry to collect."""

    _NAME: Final = "csi_plugin_operations_seconds"
    _TEXT: Final = "Container Storage Interface operation duration with gRPC error code status total"
    _LABELS: Final = ("driver_name", "method_name", "grpc_status_code")
    _BOUNDS: Final = (*(str(float(bound)) for bound in CALL_BUCKETS_S), "+Inf")

    def __init__(self) -> None:
        self._series: dict[tuple[str, str, str], _Durations] = {}

    def of(self, driver_name: str, method_name: str, code_name: str) -> _Durations:
        """Find or make the durations with these labels."""
        return self._series.setdefault((driver_name, method_name, code_name), _Durations())

    def collect(self) -> Iterator[Metric]:
        """Yield the histogram with all its series, as `prometheus_client.Histogram` would."""
        metric = Metric(self._NAME, self._TEXT, "histogram")
        for values, durations in self._series.copy().items():
            labels = dict(zip(self._LABELS, values, strict=True))
            total = 0
            for bound, count in zip(self._BOUNDS, durations.counts.copy(), strict=True):
                total += count
                metric.add_sample(f"{self._NAME}_bucket", labels | {"le": bound}, total)
            metric.add_sample(f"{self._NAME}_count", labels, total)
            metric.add_sample(f"{self._NAME}_sum", labels, durations.sum_s)
            metric.add_sample(f"{self._NAME}_created", labels, durations.created)
        yield metric


class Metrics:
    """The metrics of one process.

    Attributes:
        registry: the metrics of `/metrics`; it also has the process's own memory, CPU and open files.
        connected_nodes: edge nodes with a session to this hub.
        calls_in_flight: calls that are not answered yet.
        link_ups: sessions begun.
        redials: failed dials that are tried again.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = CollectorRegistry(auto_describe=True) if registry is None else registry
        ProcessCollector(registry=self.registry)
        self._durations = CallDurations()
        self.registry.register(self._durations)
        self._kept: dict[tuple[str, str, int], _Durations] = {}
        self._drivers: set[str] = set()
        self.connected_nodes = self._gauge("csi_bridge_connected_nodes", "Edge nodes with a session to this hub.")
        self.calls_in_flight = 0
        in_flight = self._gauge("csi_bridge_calls_in_flight", "Calls taken and not yet answered.")
        in_flight.set_function(lambda: self.calls_in_flight)
        self.link_ups = self._counter("csi_bridge_link_ups_total", "Sessions begun.")
        link_downs = self._counter("csi_bridge_link_downs_total", "Sessions ended, by reason.", "reason")
        denials = self._counter("csi_bridge_policy_denials_total", "Reports and calls that the policy forbids.", "what")
        self._denials = {what: denials.labels(what) for what in POLICY_DENIALS}
        self._ends = Gauge(
            "csi_bridge_certificate_end_timestamp_seconds",
            "When a certificate ends: this process's own, its CA's, or the first one of the hub's connected peers.",
            ("certificate",),
            registry=self.registry,
        )
        # No series before the first audit: a hub that has not looked yet must not show a 0.
        self._leaks = Gauge(
            "csi_bridge_leaks",
            "Leaks that the last leak audit in the background found (csi-bridge audit).",
            ("driver_name", "leak"),
            registry=self.registry,
        )
        self._unasked = Gauge(
            "csi_bridge_audit_unasked",
            "Lists of nodes that the last leak audit in the background lacks.",
            ("driver_name",),
            registry=self.registry,
        )
        self._audited = self._gauge(
            "csi_bridge_audit_timestamp_seconds", "When the last leak audit in the background ended; 0: none has."
        )
        self.redials = self._counter("csi_bridge_redials_total", "Dials that failed and are tried again.")
        # Made now, so that each series starts at 0 and its first event is an increase.
        self._downs = {reason: link_downs.labels(reason) for reason in LINK_DOWN_REASONS}
        conflicts = self._counter(
            "csi_bridge_node_conflicts_total",
            "Nodes' reports and answers that the hub refused, and capabilities that drivers lack on a node, by cause.",
            "cause",
        )
        self._conflicts = {cause: conflicts.labels(cause) for cause in CONFLICTS}

    def observe_call(self, driver: str, method: str, code: int, duration_s: float) -> None:
        """Count one finished call.

        Args:
            driver: the CSI driver's name; empty if the call never got that far (csi-lib-utils' `unknown-driver`).
            method: its path, `/csi.v1.Controller/CreateVolume`.
            code: the caller's gRPC code.
            duration_s: from the call's arrival here to its answer.
        """
        durations = self._kept.get((driver, method, code))
        if durations is None:
            durations = self._find(driver, method, code)
        durations.observe(duration_s)

    def link_down(self, reason: str) -> None:
        """Count one session's end. A reason outside `LINK_DOWN_REASONS` counts as `other`."""
        self._downs.get(reason, self._downs[OTHER]).inc()

    def node_conflict(self, cause: str) -> None:
        """Count a conflict of a node, by one of `CONFLICTS`."""
        self._conflicts[cause].inc()

    def policy_denial(self, what: str) -> None:
        """Count one denial by the policy: `report` or `call`."""
        self._denials[what].inc()

    def show_certificate_end(self, certificate: str, end: Callable[[], float]) -> None:
        """Show the end of a certificate, in seconds since the epoch. A thread calls `end` at each scrape."""
        self._ends.labels(certificate).set_function(end)

    def show_leaks(self, found: Mapping[tuple[str, str], int], unasked: Mapping[str, int], at: float) -> None:
        """Show the result of a leak audit in place of the last one.

        Args:
            found: the number of leaks by driver and by one of `LEAKS`.
            unasked: the number of lists that it lacks, by driver, of every driver.
            at: when it ended, in seconds since the epoch.
        """
        self._leaks.clear()
        self._unasked.clear()
        for driver, count in unasked.items():
            name = self._driver_name(driver)
            self._unasked.labels(name).inc(count)
            for leak in LEAKS:
                self._leaks.labels(name, leak).inc(found.get((driver, leak), 0))
        self._audited.set(at)

    def _find(self, driver: str, method: str, code: int) -> _Durations:
        driver_name = self._driver_name(driver)
        method_name = method if method in METHODS else OTHER
        durations = self._durations.of(driver_name, method_name, go_code_name(code))
        # Only known names are kept: a peer that invents names must not grow this dictionary.
        if (driver_name, method_name) == (driver, method) and code in _GO_NAMES:
            self._kept[driver, method, code] = durations
        return durations

    def _driver_name(self, driver: str) -> str:
        if not driver:
            return "unknown-driver"
        if driver not in self._drivers and len(self._drivers) < MOST_DRIVERS:
            self._drivers.add(driver)
        return driver if driver in self._drivers else OTHER

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(name, text, registry=self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self.registry)


def go_code_name(code: int) -> str:
    """`Unavailable` for 14, as Go prints it; `other` for a code that gRPC does not name."""
    return _GO_NAMES.get(code, OTHER)
