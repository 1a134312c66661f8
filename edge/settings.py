"""The agent's settings."""

from dataclasses import dataclass
from pathlib import Path

from common.endpoint import Endpoint
from common.errors import SettingsError
from common.settings import ProcessSettings


@dataclass(frozen=True, kw_only=True)
class AgentSettings(ProcessSettings):
    """The settings of `csi-bridge edge run`. `cli.process_options.EDGE_OPTIONS` has the flags and their help."""

    node: str
    hub: Endpoint
    driver: tuple[Path, ...]
    state_dir: Path
    root_dir: Path
    registration: str
    relay_dir: Path | None
    durability: str
    volume_stats_interval_s: float
    volume_republish_interval_s: float
    status: Path | None
    max_operations: int
    operation_limit_s: float

    def __post_init__(self) -> None:
        """Check that the values fit each other."""
        super().__post_init__()
        self.check_dial("--hub", self.hub)
        if self.relay_dir is not None and self.registration != "observe":
            why = "is for nodes with a kubelet: say --registration=observe, too"
            raise SettingsError("--relay-dir", self.relay_dir, why)
        if self.relay_dir is not None and not self.relay_dir.is_absolute():
            raise SettingsError("--relay-dir", self.relay_dir, "must be an absolute path: a kubelet is told of it")
