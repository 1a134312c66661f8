"""The settings of one driver process. Each field is a flag of `main`."""

from dataclasses import dataclass
from pathlib import Path

from examples.dirdriver import names, sizes


class SettingsError(Exception):
    """A flag has a value that cannot work.

    Attributes:
        flag: the flag, as the user writes it.
        why: the fault, and a value that works.
    """

    def __init__(self, flag: str, why: str) -> None:
        super().__init__(f"{flag}: {why}")
        self.flag = flag
        self.why = why


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of one process.

    Attributes:
        endpoint: the socket to listen on, `unix:///path` (CSI spec, Connectivity).
        state_dir: the directory for volumes and snapshots.
        node_id: this node, in NodeGetInfo and in the topology of its volumes.
        driver_name: the plugin's name.
        capacity_bytes: the size of all volumes of this node together.
    """

    endpoint: str
    state_dir: Path
    node_id: str
    driver_name: str = "dirdriver.csi"
    capacity_bytes: int = 100 * sizes.GIB

    @property
    def socket_path(self) -> Path:
        """The socket's path, without `unix://`."""
        return Path(self.endpoint.removeprefix("unix:").replace("//", "", 1))

    def check(self) -> None:
        """Check every field.

        Raises:
            SettingsError: naming the flag.
        """
        if not self.endpoint.startswith(("unix:/", "/")) or not self.socket_path.is_absolute():
            raise SettingsError("--endpoint", "write unix:///absolute/path (CSI spec, Connectivity)")
        self.check_node_id()

    def check_node_id(self) -> None:
        """Check that the node id can be the value of a topology segment."""
        if not names.is_label_value(self.node_id):
            raise SettingsError("--node-id", "it must be a label value: 63 letters, digits, '-', '_', '.'")
