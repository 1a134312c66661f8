"""The proxy driver's settings: those of KubeEdge's csidriver, and ours."""

from dataclasses import dataclass
from pathlib import Path

from common.endpoint import Endpoint, hub_endpoint
from common.errors import SettingsError
from common.link_settings import LinkSettings
from common.parsers import bounded, choice, count, driver_name, node_name, octal_mode, path, unix_path
from common.settings import REQUIRED, setting


@dataclass(frozen=True, kw_only=True)
class DriverSettings(LinkSettings):
    """`csi-bridge driver`. `--drivername`, `--endpoint`, `--kubeedge-endpoint`, `--nodeid` and `--v` are KubeEdge's."""

    command = "driver"

    drivername: str = setting(
        REQUIRED, parse=driver_name, help="Name of the vendor's driver, as its GetPluginInfo returns it."
    )
    endpoint: Path = setting(
        "unix:///csi/csi.sock", parse=unix_path, help="UNIX socket for the sidecars (their --csi-address)."
    )
    endpoint_mode: int = setting(
        "0660", parse=octal_mode, help="File mode of --endpoint. Sidecars may run as other users."
    )
    hub_endpoint: Endpoint = setting(
        "unix:///var/lib/kubeedge/kubeedge.sock",
        parse=hub_endpoint,
        aliases=("--kubeedge-endpoint",),
        help="Address of the hub: its UNIX socket, or wss://HOST:PORT on another host.",
    )
    nodeid: str | None = setting(
        None, parse=node_name, help="Edge node that every call goes to. Excludes --placement=local."
    )
    placement: str = setting(
        "auto",
        parse=choice("auto", "pinned", "local"),
        help="How the node of a call is chosen. pinned: --nodeid, else the only node that runs the driver. local: each "
        "node has its own storage; a volume is made where its topology says, and later calls for it go there. auto: "
        "local if the driver has a topology of its own, else pinned.",
    )
    max_connections: int = setting(
        "1024",
        parse=bounded(count, low="1", high="100000"),
        unit="connections",
        group="tuning",
        help="Connections of sidecars at one time; more are closed. A sidecar keeps one, and livenessprobe opens one "
        "for each check.",
    )
    state_dir: Path = setting(
        "/var/lib/csi-bridge/driver",
        parse=path,
        help="Directory for the driver's Identity and capabilities, so that sidecars can start while the link is down.",
    )

    def __post_init__(self) -> None:
        """Check what concerns several settings together."""
        super().__post_init__()
        self.check_dial("hub_endpoint", self.hub_endpoint)
        if self.placement == "local" and self.nodeid is not None:
            raise SettingsError("--placement", "local", "every call goes to --nodeid; leave one of the two away")
