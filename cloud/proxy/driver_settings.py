"""The proxy driver's settings."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from common.errors import SettingsError
from common.net.endpoint import Endpoint
from common.net.proxy import Proxy
from common.net.settings import ProcessSettings


class Mode(StrEnum):
    """How a driver's volumes are placed; `--placement` of its proxy driver."""

    AUTO = "auto"
    PINNED = "pinned"
    LOCAL = "local"
    SHARED = "shared"


PER_NODE_MODES = frozenset({Mode.LOCAL})  # each node has storage of its own
NOT_WITH_NODEID = PER_NODE_MODES | {Mode.SHARED}  # the hub chooses the node of each call

MAX_CONNECTIONS = 1024  # the default of `--max-connections`


@dataclass(frozen=True, kw_only=True)
class DriverSettings(ProcessSettings):
    """The settings of `csi-bridge driver`. `cli.process_options.DRIVER_OPTIONS` has the flags and their help."""

    drivername: str
    endpoint: Path
    endpoint_mode: int
    hub_endpoint: tuple[Endpoint, ...]
    proxy: Proxy | None
    nodeid: str | None
    placement: str
    max_connections: int
    state_dir: Path

    def __post_init__(self) -> None:
        super().__post_init__()
        for endpoint in self.hub_endpoint:
            self.check_dial("--hub-endpoint", endpoint)
        if self.placement in NOT_WITH_NODEID and self.nodeid is not None:
            why = "every call goes to --nodeid; leave one of the two away"
            raise SettingsError("--placement", self.placement, why)
