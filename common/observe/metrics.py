"""A metric: a number of one process for Prometheus.

Rules:
* A label's value comes from a closed set; any other value counts as `other`. Nodes, volumes, addresses and messages are
  in the log, never in labels. There are two exceptions. An agent shows the usage (`VolumeStats`) of the claims that are
  mounted on its node: each of them costs it much more than its metrics. A hub shows the nodes that have owed an answer
  for the longest time, a limited number (`cloud.calls.node_calls`).
* Calls have the name, labels and buckets of csi-lib-utils (metrics/metrics.go), so dashboards for CSI drivers work.
  Usage of volumes has a kubelet's names and labels, for the same reason. All other metrics are named `csi_bridge_…`,
  with the unit at the end.
* All is counted in plain numbers, which a scrape reads (`common.observe.exposition`): a call costs a dictionary look-up
  and a few additions. Only the event loop's thread counts; a scrape in another thread may see a call in one number and
  not yet in the next.
"""

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from common.csi.methods import METHODS
from common.messages import Reason
from common.status import Code

# The buckets of csi-lib-utils (metrics/metrics.go, operationsLatencyBuckets).
CALL_BUCKETS_S: Final = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600)
MOST_DRIVERS: Final = 64  # driver names in labels: they come from the other end of a link. Further ones are `other`
OTHER: Final = "other"
# Codes as Go prints them (grpc/codes, String): csi-lib-utils uses these in its label.
_GO_NAMES: Final = {int(code): code.name.title().replace("_", "") for code in Code} | {0: "OK", 1: "Canceled"}

# The values of the labels `reason` (`other` is for a newer peer's words), `cause`, and `by` (who has told the runtime).
LINK_DOWN_REASONS: Final = (*(str(reason) for reason in Reason), OTHER)
CONFLICTS: Final = ("name", "rights", "copy", "segment", "unreadable", "capability", "id")
DEFERRED_BY: Final = ("agent", "driver")


class Counter:
    """A number that grows, for each value of its label; of a metric without a label, for the empty value."""

    def __init__(self, name: str, text: str, label: str = "", values: Iterable[str] = ("",)) -> None:
        self.name = name
        self.text = text
        self.label = label
        self.counts = dict.fromkeys(values, 0)
        self.created = time.time()

    def inc(self, value: str = "") -> None:
        self.counts[value] += 1


class Gauge:
    """A number that goes up and down. `readers` has the function that returns it, for each value of its label."""

    def __init__(self, name: str, text: str, label: str = "") -> None:
        self.name = name
        self.text = text
        self.label = label
        self.readers: dict[str, Callable[[], float]] = {}

    def read_from(self, read: Callable[[], float], value: str = "") -> None:
        self.readers[value] = read


class Durations:
    """The durations of the calls with one set of labels. The last count is of those longer than all bounds."""

    __slots__ = ("counts", "created", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(CALL_BUCKETS_S) + 1)
        self.sum_s = 0.0
        self.created = time.time()


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeStats:
    """A driver's answer about usage and health. Counts are 0 where it gives none."""

    available_bytes: int = 0
    capacity_bytes: int = 0
    used_bytes: int = 0
    inodes_free: int = 0
    inodes: int = 0
    inodes_used: int = 0
    abnormal: bool | None = None  # None: the driver does not report it
    message: str = ""  # the health's text for people
    is_size_only: bool = False  # only `capacity_bytes` is known: a guest has the volume, and cannot be asked

    @property
    def tells_usage(self) -> bool:
        """Whether the driver gives any of the counts. One that has no GET_VOLUME_STATS gives none."""
        return not self.is_size_only and any(
            (self.capacity_bytes, self.available_bytes, self.used_bytes, self.inodes, self.inodes_used)
        )


class Metrics:
    """The metrics of one process."""

    def __init__(self) -> None:
        self.calls: dict[tuple[str, str, str], Durations] = {}  # by the labels for driver, method and code
        # By driver, method and code, of those that `find` was asked for, and whose names are known.
        self.durations: dict[tuple[str, str, int], Durations] = {}
        self._drivers: set[str] = set()
        self.connected_nodes = self.calls_in_flight = 0
        # A thread calls these at each scrape. The usage of the mounted volumes, by namespace and name of the claim:
        self.claims: Callable[[], Mapping[tuple[str, str], VolumeStats]] = dict
        # Node, driver, method and age in seconds of calls that nodes have not answered:
        self.oldest_calls: Callable[[], Collection[tuple[str, str, str, int]]] = tuple
        self.link_ups = Counter("csi_bridge_link_ups", "Sessions begun.")
        self._downs = Counter("csi_bridge_link_downs", "Sessions ended, by reason.", "reason", LINK_DOWN_REASONS)
        self.redials = Counter("csi_bridge_redials", "Dials that failed and are tried again.")
        self.conflicts = Counter(
            "csi_bridge_node_conflicts",
            "Nodes' reports and answers that the hub refused, and capabilities that drivers lack on a node, by cause.",
            "cause",
            CONFLICTS,
        )
        self.deferred = Counter(
            "csi_bridge_deferred_publications",
            "Publications of a volume that the pod's runtime mounts in its guest, by who told the runtime.",
            "by",
            DEFERRED_BY,
        )
        self._connected = Gauge("csi_bridge_connected_nodes", "Edge nodes with a session to this hub.")
        self._connected.read_from(lambda: self.connected_nodes)
        self._in_flight = Gauge("csi_bridge_calls_in_flight", "Calls taken and not yet answered.")
        self._in_flight.read_from(lambda: self.calls_in_flight)
        self.certificate_ends = Gauge(
            "csi_bridge_certificate_end_timestamp_seconds",
            "When a certificate ends: this process's own, its CA's, or the first one of the hub's connected peers.",
            "certificate",
        )
        self._epochs = Gauge(
            "csi_bridge_election_epoch",
            "The number of the last election of a driver with --placement=shared; it grows with each takeover.",
            "driver_name",
        )
        self._served = Gauge(
            "csi_bridge_election_served", "Whether the elected node serves the driver now: 1 or 0.", "driver_name"
        )
        self.leader = Gauge("csi_bridge_hub_leader", "Whether this hub holds the Lease of its cluster: 1 or 0.")
        fields = list(vars(self).values())
        self.counters = [field for field in fields if isinstance(field, Counter)]
        self.gauges = [field for field in fields if isinstance(field, Gauge)]

    def find(self, driver: str, method: str, code: int) -> Durations:
        """The durations of the calls of a driver (empty: the call never got as far), by method and code."""
        driver_name = self._driver_name(driver)
        method_name = method if method in METHODS else OTHER
        durations = self.calls.setdefault((driver_name, method_name, go_code_name(code)), Durations())
        # Only known names are kept: a peer that invents names must not grow this dictionary.
        if (driver_name, method_name) == (driver, method) and code in _GO_NAMES:
            self.durations[driver, method, code] = durations
        return durations

    def link_down(self, reason: str) -> None:
        self._downs.inc(reason if reason in self._downs.counts else OTHER)

    def show_election(self, driver: str, epoch: Callable[[], float], served: Callable[[], bool]) -> None:
        """Show the election of a driver. A thread calls both at each scrape."""
        if len(self._epochs.readers) < MOST_DRIVERS:
            self._epochs.read_from(epoch, driver)
            self._served.read_from(served, driver)

    def _driver_name(self, driver: str) -> str:
        if not driver:
            return "unknown-driver"
        if driver not in self._drivers and len(self._drivers) < MOST_DRIVERS:
            self._drivers.add(driver)
        return driver if driver in self._drivers else OTHER


def go_code_name(code: int) -> str:
    """`Unavailable` for 14, as Go prints it; `other` for a code that gRPC does not name."""
    return _GO_NAMES.get(code, OTHER)
