"""The agent's settings."""

from dataclasses import dataclass
from pathlib import Path

from common.endpoint import Endpoint, hub_endpoint
from common.link_settings import LinkSettings
from common.parsers import bounded, duration, path, unix_path, words
from common.settings import REQUIRED, setting


@dataclass(frozen=True, kw_only=True)
class AgentSettings(LinkSettings):
    """`csi-bridge edge run`."""

    command = "edge"

    node: str = setting(REQUIRED, parse=words, help="This node's name, as Kubernetes knows it.")
    hub: Endpoint = setting(REQUIRED, parse=hub_endpoint, help="Where the hub listens: wss://HOST:PORT.")
    driver: tuple[Path, ...] = setting(
        (), parse=unix_path, repeatable=True, help="The socket of a vendor's CSI driver on this node."
    )
    state_dir: Path = setting("/var/lib/csi-bridge/edge", parse=path, help="Where the agent keeps what must survive.")
    status: Path | None = setting(
        "unix:///run/csi-bridge/edge.sock",
        parse=unix_path,
        help="Where the agent tells its state, as JSON over HTTP: curl --unix-socket PATH http://edge/status.",
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
