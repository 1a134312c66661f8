"""The settings of one driver process: those of the example driver, and the switches for tests."""

from dataclasses import dataclass
from pathlib import Path

from examples.dirdriver import settings as base
from examples.dirdriver import sizes
from examples.dirdriver.settings import SettingsError
from tests.kit.testdriver import names, units
from tests.kit.testdriver.access import Layout
from tests.kit.testdriver.faults import parse_faults

SOCKET_PATH_LIMIT_BYTES = 107
"""sockaddr_un.sun_path holds 108 bytes, the last of them zero (unix(7))."""

NODE_ID_LIMIT_BYTES = 256
"""CSI spec, NodeGetInfoResponse.node_id (since 1.5)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(base.Settings):
    """The settings of one process. Several processes may share a state directory, each with a node id of its own.

    Attributes:
        filesystem: what a volume of access type mount is made of: DIRECTORY or FILESYSTEM.
        max_volume_bytes: one volume; 0 means `capacity_bytes`.
        max_volumes_per_node: attachments to one node; 0 means no limit.
        attach: whether ControllerPublishVolume is needed before a node can use a volume.
        stage: whether NodeStageVolume is needed before NodePublishVolume.
        node_expand: whether the node has EXPAND_VOLUME; ControllerExpandVolume sends volumes there all the same.
        topology: whether a volume lives on one node, and says so.
        snapshot_topology: whether a snapshot says where it lives, too (alpha in CSI 1.13); nothing without `topology`.
        metadata: whether SnapshotMetadata is served.
        multi_writer: whether the node and the controller know the single-node modes of CSI 1.5.
        volume_condition: whether lists of volumes say in what condition they are, as before CSI 1.13.
        raw: whether a volume that was made for mounting can be a block device, as the disk of a SAN.
        mount_group: whether the driver applies a pod's fsGroup, and the CO leaves it alone.
        mutable_parameters: names that ControllerModifyVolume accepts; none turns it off.
        metadata_ranges: ranges that every snapshot pretends to have; 0 tells the truth.
        limits: whether the spec's size limits on strings and maps are kept.
        faults: see `faults`.
        fault_file: see `faults`; None means `faults` in the state directory.
        call_log: where each call is noted; None for nowhere.
    """

    filesystem: Layout = Layout.DIRECTORY
    max_volume_bytes: int = 0
    max_volumes_per_node: int = 0
    attach: bool = True
    stage: bool = True
    node_expand: bool = True
    topology: bool = True
    snapshot_topology: bool = True
    metadata: bool = True
    multi_writer: bool = True
    volume_condition: bool = False
    raw: bool = False
    mount_group: bool = False
    mutable_parameters: tuple[str, ...] = ()
    metadata_ranges: int = 0
    limits: bool = True
    faults: tuple[str, ...] = ()
    fault_file: Path | None = None
    call_log: Path | None = None

    @property
    def largest_volume_bytes(self) -> int:
        """The size of the largest possible volume."""
        return self.max_volume_bytes or self.capacity_bytes

    def check(self) -> None:
        """Check every field.

        Raises:
            SettingsError: naming the flag.
        """
        base.Settings.check(self)  # super() does not work in a dataclass with slots before Python 3.14
        if len(bytes(self.socket_path)) > SOCKET_PATH_LIMIT_BYTES:
            raise SettingsError("--endpoint", f"a socket's path has at most {SOCKET_PATH_LIMIT_BYTES} bytes on Linux")
        if not names.is_driver_name(self.driver_name):
            raise SettingsError("--drivername", "at most 63 letters, digits, '-' and '.', from letter to letter")
        for flag, value in (("--capacity", self.capacity_bytes), ("--max-volume-size", self.largest_volume_bytes)):
            if value < sizes.SMALLEST_BYTES:
                raise SettingsError(flag, f"must be at least {units.show_size(sizes.SMALLEST_BYTES)}")
        try:
            parse_faults(self.faults)
        except ValueError as error:
            raise SettingsError("--fault", str(error)) from error

    def check_node_id(self) -> None:
        """Check that the node id can be a file name, and with topology the value of a segment."""
        if self.topology:
            base.Settings.check_node_id(self)
        if not self.node_id or len(self.node_id.encode()) > NODE_ID_LIMIT_BYTES:
            raise SettingsError("--node-id", f"a node id has 1 to {NODE_ID_LIMIT_BYTES} bytes")
        if "/" in self.node_id or self.node_id in (".", ".."):
            raise SettingsError("--node-id", "it names a file in the state directory: no '/' in it")
