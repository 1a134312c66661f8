"""The fence plan: the volumes that this node fences when its lease ends, and that end.

The agent and its watchdog process share it, in two files of the state directory:

* `fence.json` has the volumes. It is written before a volume is staged for the first time, and after it is unstaged.
* `fence.lease` has three numbers, mapped into the memory of both processes, so that neither waits for a disk: the end
  of the lease, when the watchdog began to fence, and when one of them had stopped all writers. They are times of the
  boot clock; 0 means none. A watchdog locks the file while it fences.

Rules:

* Both are valid for one boot. After a reboot nothing is mounted. But the hub may still count with what it heard before.
* Only the agent writes `fence.json`, and the end of the lease.
"""

import fcntl
import hashlib
import mmap
import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from common.state_file import Form, read_state, write_state

FORM: Final = Form("edge agent")
"""Of `fence.json`."""

Part = tuple[str, str, str]
"""The device of a file system as `major:minor`, the directory in it that is the volume, and what was mounted."""

_NUMBER: Final = struct.Struct("=d")
_END, _MARK, _BOOT, _DONE, _SIZE = 0, 8, 16, 32, 40


@dataclass(frozen=True, slots=True, order=True)
class Held:
    """A volume to fence.

    Attributes:
        driver: the driver's name.
        handle: the vendor's id of the volume.
        pvs: the names of its PersistentVolumes, which are part of its paths.
        is_fenced: the lease has ended while the node had it, and it is not unstaged yet.
        parts: the parts of file systems that were mounted for it; none from when its writers have stopped.
        doubt: why the agent cannot be sure to stop all its writers; empty if it can.
        open_calls: the names of the driver's calls that may mount it and have not ended, as far as the agent knows.
    """

    driver: str
    handle: str
    pvs: tuple[str, ...]
    is_fenced: bool = False
    parts: tuple[Part, ...] = ()
    doubt: str = ""
    open_calls: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The volumes to fence.

    Attributes:
        boot: the boot id under which they were mounted.
        keeper: names the start of the agent that wrote it; its watchdog knows the same name.
        lease_s: the length of the agent's lease, in seconds.
        stop_s: seconds after its end in which all writers must have stopped.
        volumes: the volumes.
        earlier: the driver and the handle of volumes that an earlier boot fenced, and this one has not staged yet.
    """

    boot: str
    keeper: str
    lease_s: float
    stop_s: float
    volumes: tuple[Held, ...] = ()
    earlier: tuple[tuple[str, str], ...] = ()

    def due(self) -> list[Held]:
        """The volumes whose writers have not been stopped yet."""
        return [held for held in self.volumes if not held.is_fenced or held.parts or held.open_calls]


def read_plan(state_dir: Path) -> Plan | None:
    """The plan on the disk; None if there is none.

    Raises:
        NewerState: a newer agent wrote it.
        OSError: it cannot be read.
        ValueError: it is damaged.
    """
    try:
        body = read_state(state_dir / "fence.json", FORM)
    except FileNotFoundError:
        return None
    try:
        return _plan(body)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def write_plan(state_dir: Path, plan: Plan) -> None:
    """Replace the plan on the disk.

    Raises:
        OSError: it cannot be written; the old one stays.
    """
    write_state(state_dir / "fence.json", FORM, asdict(plan), mode=0o600)


class LeaseFile:
    """The numbers that both processes share."""

    def __init__(self, state_dir: Path, boot: str = "") -> None:
        """Map the file. A new one has zeros, and so has that of another boot.

        Args:
            state_dir: the agent's.
            boot: the id of the machine's present boot; empty: the file is of this boot.

        Raises:
            OSError: it cannot be opened, or the disk is full.
        """
        self._descriptor = os.open(state_dir / "fence.lease", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # A page without a block on the disk would kill the process that writes to it, if the disk is full.
            os.posix_fallocate(self._descriptor, 0, _SIZE)
            self._map = mmap.mmap(self._descriptor, _SIZE)
        except OSError:
            os.close(self._descriptor)
            raise
        if boot:
            self._begin(hashlib.sha256(boot.encode()).digest()[: _DONE - _BOOT])

    @staticmethod
    def exists(state_dir: Path) -> bool:
        """Whether an agent has fenced with this state directory."""
        return (state_dir / "fence.lease").exists()

    @property
    def ends_at(self) -> float:
        """When the lease ends, by the boot clock; 0 if it never held."""
        return self._get(_END)

    @ends_at.setter
    def ends_at(self, at: float) -> None:
        self._put(_END, at)

    @property
    def marked_at(self) -> float:
        """When the watchdog last began to fence, by the boot clock; 0 if it has not since the agent set it so."""
        return self._get(_MARK)

    @marked_at.setter
    def marked_at(self, at: float) -> None:
        self._put(_MARK, at)

    @property
    def done_at(self) -> float:
        """When all writers had stopped for the last time, by the boot clock; 0 if they never were."""
        return self._get(_DONE)

    @done_at.setter
    def done_at(self, at: float) -> None:
        self._put(_DONE, at)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Show the agent that the watchdog fences. Ends with the process at the latest."""
        with suppress(BlockingIOError):  # an agent that hangs amid `is_locked` must not keep the watchdog from its work
            fcntl.flock(self._descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        try:
            yield
        finally:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def is_locked(self) -> bool:
        """Whether a watchdog fences at this moment."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        return False

    def close(self) -> None:
        """Unmap the file."""
        self._map.close()
        os.close(self._descriptor)

    def _begin(self, boot: bytes) -> None:
        stored = self._map[_BOOT:_DONE]
        if stored != boot and any(stored):  # zeros: an earlier agent of this boot, or of the last one, wrote no id
            self.ends_at = self.marked_at = self.done_at = 0.0
        self._map[_BOOT:_DONE] = boot

    def _get(self, place: int) -> float:
        (number,) = _NUMBER.unpack_from(self._map, place)
        return float(number)

    def _put(self, place: int, number: float) -> None:
        _NUMBER.pack_into(self._map, place, number)


def _plan(body: Mapping[str, Any]) -> Plan:
    """The plan of a file.

    Raises:
        KeyError, TypeError: it is none.
    """
    volumes = tuple(_held(**held) for held in body["volumes"])
    times = {name: float(body[name]) for name in ("lease_s", "stop_s")}
    earlier = tuple((driver, handle) for driver, handle in body.get("earlier", ()))
    return Plan(boot=body["boot"], keeper=body["keeper"], volumes=volumes, earlier=earlier, **times)


def _held(*, pvs: list[str], parts: Iterable[Iterable[str]] = (), open_calls: Iterable[str] = (), **more: Any) -> Held:
    known = tuple((device, root, source) for device, root, source in parts)
    return Held(pvs=tuple(pvs), parts=known, open_calls=tuple(open_calls), **more)
