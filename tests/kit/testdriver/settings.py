"""The settings of one driver process: those of the example driver, and the switches for tests."""

from dataclasses import dataclass
from pathlib import Path

from examples.dirdriver import access
from examples.dirdriver import settings as base


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(base.Settings):
    """The settings of one process; `main` says what each means."""

    filesystem: str = access.DIRECTORY
    max_volumes_per_node: int = 0
    controller: bool = True
    attach: bool = True
    stage: bool = True
    node_expand: bool = True
    topology: bool = True
    snapshot_topology: bool = True
    multi_writer: bool = True
    volume_condition: bool = False
    raw: bool = False
    mount_group: bool = False
    mutable_parameters: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    fault_file: Path | None = None
    call_log: Path | None = None
