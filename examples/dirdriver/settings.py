"""The settings of one driver process. Each field is a flag of `main`."""

from dataclasses import dataclass
from pathlib import Path

from examples.dirdriver import names, sizes


class SettingsError(Exception):
    """A flag has a value that cannot work. `why` says which one works."""

    def __init__(self, flag: str, why: str) -> None:
        super().__init__(f"{flag}: {why}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of one process."""

    endpoint: str  # `unix:///path` (CSI spec, Connectivity)
    state_dir: Path  # for volumes and snapshots
    node_id: str  # in NodeGetInfo and in the topology of its volumes
    driver_name: str = "dirdriver.csi"
    capacity_bytes: int = 100 * sizes.GIB  # of all volumes of this node together

    @property
    def socket_path(self) -> Path:
        return Path(self.endpoint.removeprefix("unix:").replace("//", "", 1))

    def check(self) -> None:
        if not self.endpoint.startswith(("unix:/", "/")) or not self.socket_path.is_absolute():
            raise SettingsError("--endpoint", "write unix:///absolute/path (CSI spec, Connectivity)")
        if not names.is_label_value(self.node_id):
            raise SettingsError("--node-id", "it must be a label value: 63 letters, digits, '-', '_', '.'")
