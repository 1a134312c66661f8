"""The agent's settings."""

from dataclasses import dataclass
from pathlib import Path

from common.endpoint import Endpoint, hub_endpoint
from common.link_settings import LinkSettings
from common.parsers import bounded, choice, count, duration, node_name, path, unix_path
from common.settings import REQUIRED, setting


@dataclass(frozen=True, kw_only=True)
class AgentSettings(LinkSettings):
    """`csi-bridge edge run`."""

    command = "edge"

    node: str = setting(REQUIRED, parse=node_name, help="This node's name, as Kubernetes knows it.")
    hub: Endpoint = setting(REQUIRED, parse=hub_endpoint, help="Where the hub listens: wss://HOST:PORT.")
    driver: tuple[Path, ...] = setting(
        (),
        parse=unix_path,
        repeatable=True,
        help="The socket of a vendor's CSI driver on this node. Of a vendor whose controller and node plugin are two "
        "processes of one name: the controller's; the node plugin registers.",
    )
    state_dir: Path = setting("/var/lib/csi-bridge/edge", parse=path, help="Where the agent keeps what must survive.")
    root_dir: Path = setting(
        "/var/lib/kubelet",
        parse=path,
        help="A kubelet's directory: drivers register and pods' volumes appear in it. KubeEdge's is /var/lib/edged.",
    )
    registration: str = setting(
        "own",
        parse=choice("own", "observe"),
        help="own: take registrations and mount pods' volumes, as a kubelet does. observe: a kubelet does that here; "
        "find its drivers, and mount nothing.",
    )
    relay_dir: Path | None = setting(
        None,
        parse=path,
        help="With observe: a directory for one socket per driver, PATH/<driver>.sock, that the kubelet calls in the "
        "driver's place (node-driver-registrar's --kubelet-registration-path). It adds to the answers of a driver "
        "without a topology which node this is. Without it no such driver's volumes are tied to a node.",
    )
    durability: str = setting(
        "normal",
        parse=choice("normal", "full"),
        help="full: what is written is on the disk before the next step (fsync), for nodes that lose power.",
    )
    volume_stats_interval_s: float = setting(
        "1m",
        parse=bounded(duration, low="1s", high="24h"),
        help="How often a driver is asked for usage and health of each volume.",
    )
    volume_republish_interval_s: float = setting(
        "1m",
        parse=bounded(duration, low="1s", high="24h"),
        help="How often a volume is published again whose driver asks for it (requiresRepublish); up to half is added.",
    )
    status: Path | None = setting(
        "unix:///run/csi-bridge/edge.sock",
        parse=unix_path,
        help="Where the agent tells its state, as JSON over HTTP: curl --unix-socket PATH http://edge/status.",
    )
    max_operations: int = setting(
        "1024",
        parse=bounded(count, low="1", high="100000"),
        unit="operations",
        help="Calls that change something and may be under way at the drivers at once, with or without a caller.",
    )
    operation_limit_s: float = setting(
        "10m",
        parse=bounded(duration, low="1s", high="24h"),
        help="The longest that one call to a driver may take; then it is cancelled and its name is free again.",
    )

    def __post_init__(self) -> None:
        """Check what concerns several settings together."""
        super().__post_init__()
        self.check_dial("hub", self.hub)
        if self.relay_dir is not None and self.registration != "observe":
            raise self.wrong("relay_dir", "is for nodes with a kubelet: say --registration=observe, too")
        if self.relay_dir is not None and not self.relay_dir.is_absolute():
            raise self.wrong("relay_dir", "must be an absolute path: a kubelet is told of it")
