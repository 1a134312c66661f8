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

    node: str = setting(REQUIRED, parse=node_name, help="Name of this node in Kubernetes.")
    hub: Endpoint = setting(REQUIRED, parse=hub_endpoint, help="Address of the hub: wss://HOST:PORT.")
    driver: tuple[Path, ...] = setting(
        (),
        parse=unix_path,
        repeatable=True,
        help="Socket of a vendor's CSI driver on this node. If the vendor's controller and node plugin are two "
        "processes of one name, give the controller's socket; the node plugin registers by itself.",
    )
    state_dir: Path = setting(
        "/var/lib/csi-bridge/edge", parse=path, help="Directory for everything that the agent keeps over a restart."
    )
    root_dir: Path = setting(
        "/var/lib/kubelet",
        parse=path,
        help="Kubelet's directory, where drivers register and pods' volumes are mounted. KubeEdge's is /var/lib/edged.",
    )
    registration: str = setting(
        "own",
        parse=choice("own", "observe"),
        help="own: the agent takes registrations and mounts pods' volumes, as a kubelet does. observe: a kubelet does "
        "that on this node; the agent finds its drivers and mounts nothing.",
    )
    relay_dir: Path | None = setting(
        None,
        parse=path,
        help="Needs --registration=observe. Directory for one relay socket per driver, PATH/<driver>.sock, which the "
        "kubelet calls in place of the driver (node-driver-registrar's --kubelet-registration-path). The relay adds "
        "this node to the answers of a driver without a topology. Without it such volumes are not tied to a node.",
    )
    durability: str = setting(
        "normal",
        parse=choice("normal", "full"),
        help="full: every write is on the disk before the next step (fsync), for nodes that lose power.",
    )
    volume_stats_interval_s: float = setting(
        "1m",
        parse=bounded(duration, low="1s", high="24h"),
        group="tuning",
        help="Time between two questions to a driver for the usage and health of a volume.",
    )
    volume_republish_interval_s: float = setting(
        "1m",
        parse=bounded(duration, low="1s", high="24h"),
        group="tuning",
        help="Time between two publications of a volume whose driver wants them (requiresRepublish). The agent adds up "
        "to half of it.",
    )
    status: Path | None = setting(
        "unix:///run/csi-bridge/edge.sock",
        parse=unix_path,
        help="UNIX socket where the agent tells its state as JSON over HTTP: curl --unix-socket PATH http://edge/status.",
    )
    max_operations: int = setting(
        "1024",
        parse=bounded(count, low="1", high="100000"),
        unit="operations",
        group="tuning",
        help="Calls that change something and are under way at the drivers at one time, also without a caller.",
    )
    operation_limit_s: float = setting(
        "10m",
        parse=bounded(duration, low="1s", high="24h"),
        group="tuning",
        help="Time limit for one call to a driver. After it the agent cancels the call, and a retry can start anew.",
    )

    def __post_init__(self) -> None:
        """Check what concerns several settings together."""
        super().__post_init__()
        self.check_dial("hub", self.hub)
        if self.relay_dir is not None and self.registration != "observe":
            raise self.wrong("relay_dir", "is for nodes with a kubelet: say --registration=observe, too")
        if self.relay_dir is not None and not self.relay_dir.is_absolute():
            raise self.wrong("relay_dir", "must be an absolute path: a kubelet is told of it")
