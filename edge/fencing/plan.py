"""The fence plan: the volumes that this node fences when its lease ends, and the end of the lease, on the disk.

* `fence.json` has the volumes. It is written before the hub hears that a volume is staged, and after the hub has stored
  that it is not. So a volume that the hub may believe to be staged is staged in the file, too.
* `fence.lease` has the end of the lease. It is written after each renewal, without a wait for the disk: the agent may
  die, but the end of the machine ends the lease anyway.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from common.store.state_file import read_state, write_state


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSystem:
    """The file system of a volume: its device as `major:minor`, and the `diskseq` of that disk in this boot (sysfs)."""

    device: str
    sequence: str
    fs_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldVolume:
    """A volume to fence."""

    driver: str
    handle: str
    boot: str  # the id of the boot in which it was mounted
    pvs: tuple[str, ...] = ()  # the names of its PersistentVolumes, which are part of its paths
    # The driver's calls that may mount, format or grow it, and have not ended as far as the agent knows.
    open_calls: tuple[str, ...] = ()
    # Its file system while the hub may believe that it is staged; None: it is being staged.
    file_system: FileSystem | None = None
    is_fenced: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FencePlan:
    """The volumes to fence, and the times in seconds with which the hub counts: the lease's, and the watchdog's."""

    lease_s: float = 0.0
    watchdog_s: int = 0
    volumes: tuple[HeldVolume, ...] = ()


def read_plan(state_dir: Path) -> FencePlan | None:
    """The plan on the disk; None if there is none. Raises SettingsError, OSError, or ValueError if it is damaged."""
    try:
        body = read_state(state_dir / "fence.json", "edge agent")
    except FileNotFoundError:
        return None
    try:
        volumes = tuple(_held(**held) for held in body["volumes"])
        return FencePlan(lease_s=float(body["lease_s"]), watchdog_s=int(body["watchdog_s"]), volumes=volumes)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def write_plan(state_dir: Path, plan: FencePlan) -> None:
    """Replace the plan on the disk. After an OSError the old one stays."""
    write_state(state_dir / "fence.json", asdict(plan), mode=0o600)


def read_lease(state_dir: Path, boot: str) -> float | None:
    """When the lease of the agent's last start ends, by the boot clock; None if this boot had none that is known."""
    try:
        of, at = (state_dir / "fence.lease").read_text().split()
        return float(at) if of == boot else None
    except (OSError, ValueError):
        return None


def write_lease(state_dir: Path, boot: str, ends_at: float) -> None:
    """Note when the lease ends. An agent that dies meanwhile leaves an empty file, which counts as an ended lease."""
    (state_dir / "fence.lease").write_text(f"{boot} {ends_at:.3f}\n")


def _held(*, pvs: list[str], open_calls: list[str], file_system: dict[str, str] | None, **more: Any) -> HeldVolume:
    found = FileSystem(**file_system) if file_system is not None else None
    return HeldVolume(pvs=tuple(pvs), open_calls=tuple(open_calls), file_system=found, **more)
