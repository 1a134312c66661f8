"""The settings of one driver process, checked. Each field is a flag of `main`."""

from dataclasses import dataclass
from pathlib import Path

from examples.dirdriver import names, sizes
from examples.dirdriver.access import Layout
from examples.dirdriver.faults import parse_faults

SOCKET_PATH_LIMIT_BYTES = 107
"""sockaddr_un.sun_path holds 108 bytes, the last of them zero (unix(7))."""


class SettingsError(Exception):
    """A flag has a value that cannot work.

    Attributes:
        flag: the flag, as the user writes it.
        why: what is wrong, and what to write instead.
    """

    def __init__(self, flag: str, why: str) -> None:
        super().__init__(f"{flag}: {why}")
        self.flag = flag
        self.why = why


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that one process is told.

    Attributes:
        endpoint: where to listen, `unix:///path` (CSI spec, Connectivity).
        state_dir: database, volumes and snapshots; several processes may share it, each with a node id of its own.
        node_id: this node, in NodeGetInfo, topology and attachments.
        driver_name: the plugin's name.
        filesystem: what a volume of access type mount is made of: DIRECTORY or FILESYSTEM.
        capacity_bytes: all volumes of this node together; without topology, all volumes.
        max_volume_bytes: one volume; 0 means `capacity_bytes`.
        max_volumes_per_node: attachments to one node; 0 means no limit.
        attach: whether ControllerPublishVolume is needed before a node can use a volume.
        stage: whether NodeStageVolume is needed before NodePublishVolume.
        node_expand: whether the node has EXPAND_VOLUME; ControllerExpandVolume sends volumes there all the same.
        topology: whether a volume lives on one node, and says so.
        snapshot_topology: whether a snapshot says where it lives, too (alpha in CSI 1.13); nothing without `topology`.
        metadata: whether SnapshotMetadata is served.
        multi_writer: whether the node and the controller know the single-node modes of CSI 1.5.
        mount_group: whether the driver applies a pod's fsGroup, and the CO leaves it alone.
        mutable_parameters: names that ControllerModifyVolume accepts; none turns it off.
        metadata_ranges: ranges that every snapshot pretends to have; 0 tells the truth.
        limits: whether the spec's size limits on strings and maps are kept.
        faults: see `faults`.
        fault_file: see `faults`; None means `faults` in the state directory.
        call_log: where each call is noted; None for nowhere.
    """

    endpoint: str
    state_dir: Path
    node_id: str
    driver_name: str = "dirdriver.csi"
    filesystem: Layout = Layout.DIRECTORY
    capacity_bytes: int = 100 * sizes.GIB
    max_volume_bytes: int = 0
    max_volumes_per_node: int = 0
    attach: bool = True
    stage: bool = True
    node_expand: bool = True
    topology: bool = True
    snapshot_topology: bool = True
    metadata: bool = True
    multi_writer: bool = True
    mount_group: bool = False
    mutable_parameters: tuple[str, ...] = ()
    metadata_ranges: int = 0
    limits: bool = True
    faults: tuple[str, ...] = ()
    fault_file: Path | None = None
    call_log: Path | None = None

    @property
    def largest_volume_bytes(self) -> int:
        """The size of the largest volume that can ever be made."""
        return self.max_volume_bytes or self.capacity_bytes

    @property
    def socket_path(self) -> Path:
        """The socket's path, without `unix://`."""
        return Path(self.endpoint.removeprefix("unix:").replace("//", "", 1))

    def check(self) -> None:
        """Refuse what cannot work.

        Raises:
            SettingsError: naming the flag.
        """
        self._check_endpoint()
        if not names.is_driver_name(self.driver_name):
            raise SettingsError("--drivername", "at most 63 letters, digits, '-' and '.', from letter to letter")
        if not self.node_id or len(self.node_id.encode()) > names.NODE_ID_LIMIT_BYTES:
            raise SettingsError("--node-id", f"a node id has 1 to {names.NODE_ID_LIMIT_BYTES} bytes")
        if self.topology and not names.is_label_value(self.node_id):
            raise SettingsError(
                "--node-id", "with topology it must be a label value: 63 letters, digits, '-', '_', '.'"
            )
        if "/" in self.node_id or self.node_id in (".", ".."):
            raise SettingsError("--node-id", "it names a file in the state directory: no '/' in it")
        for flag, value in (("--capacity", self.capacity_bytes), ("--max-volume-size", self.largest_volume_bytes)):
            if value < sizes.SMALLEST_BYTES:
                raise SettingsError(flag, f"must be at least {sizes.show_size(sizes.SMALLEST_BYTES)}")
        try:
            parse_faults(self.faults)
        except ValueError as error:
            raise SettingsError("--fault", str(error)) from error

    def _check_endpoint(self) -> None:
        if not self.endpoint.startswith(("unix:/", "/")) or not self.socket_path.is_absolute():
            raise SettingsError("--endpoint", "write unix:///absolute/path (CSI spec, Connectivity)")
        if len(bytes(self.socket_path)) > SOCKET_PATH_LIMIT_BYTES:
            raise SettingsError("--endpoint", f"a socket's path has at most {SOCKET_PATH_LIMIT_BYTES} bytes on Linux")
