"""The watchdog: a process that fences this node's volumes when its agent has died or hangs.

    python -m edge.fencing.watchdog STATE_DIR ROOT_DIR RESET STOP_S KEEPER [LOG_FORMAT]

RESET is empty if the machine is never to be reset.

Rules:

* It fences some time after the lease's end (`GRACE_S`). By then an agent that works has done it.
* It marks that first, and then looks at the lease again. The agent looks at the mark after it has renewed the lease. So
  one of them sees the other, even if a process is stopped in between.
* It fences again and again until an agent has renewed the lease, or has fenced the volumes itself.
* It outlives its agent while there are volumes to fence. It ends when a later agent has taken the plan over.
"""

import json
import logging
import os
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from edge.fencing.plan import Held, LeaseFile, Plan, read_plan
from edge.fencing.stop import Stopped, stop_writers

log = logging.getLogger("csi_bridge.edge.fence")

GRACE_S: Final = 0.5
"""Between the lease's end and the watchdog's part."""

AGAIN_S: Final = 2.0
"""Between two looks at fenced volumes: a driver's call that was under way at the lease's end may still mount one."""

LATE_S: Final = 2.5
"""The time for a stop that begins too late, or again: a few looks, and the measures by force."""

READY: Final = b"ready\n"
"""The watchdog writes this to its standard output when it watches."""

_LOOK_S: Final = 0.25


def boot_time() -> float:
    """Seconds since the machine's start, suspends included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def left(ends_at: float, stop_s: float) -> float:
    """The seconds that are left to stop all writers. If it is late, the work takes some all the same."""
    return min(max(ends_at + stop_s - boot_time(), LATE_S), stop_s)


@dataclass
class Watchdog:
    """One watchdog.

    Attributes:
        state_dir: the agent's.
        root: `--root-dir`.
        reset: the file that resets the machine; None: it is never reset.
        stop_s: seconds after the lease's end in which all writers must have stopped.
        keeper: names the agent's start.
        parent: the agent's process id.
    """

    state_dir: Path
    root: Path
    reset: Path | None
    stop_s: float
    keeper: str
    parent: int

    def __post_init__(self) -> None:
        """Map the lease."""
        self._lease = LeaseFile(self.state_dir)
        self._plan: Plan | None = None
        self._next_at = 0.0
        """When it fences again, if the lease is still over."""
        self._told = 0.0
        """The end of the lease after which all writers had stopped."""
        self._is_in_charge = False
        """Whether its agent has once written the plan. Until then, the one before may still need this watchdog."""

    def look(self) -> bool:
        """Fence if the lease has ended. Returns whether to go on watching."""
        self._read()
        is_mine = self._plan is not None and self._plan.keeper == self.keeper
        if self._is_in_charge and not is_mine:
            return False
        self._is_in_charge = is_mine
        due = self._plan.due() if self._plan is not None else []
        ends_at = self._lease.ends_at
        if due and boot_time() >= max(ends_at + GRACE_S, self._next_at):
            self._fence(due, ends_at)
            self._next_at = boot_time() + AGAIN_S
        return bool(due) or os.getppid() == self.parent

    def _fence(self, due: list[Held], ends_at: float) -> None:
        with self._lease.lock():
            self._fence_locked(due, ends_at)

    def _fence_locked(self, due: list[Held], ends_at: float) -> None:
        self._lease.marked_at = boot_time()
        if self._lease.ends_at != ends_at:  # the agent has renewed it at this moment
            self._lease.marked_at = 0.0
            return
        if self._told == ends_at:  # another volume may get the device when the hub has let this one go
            due = [replace(held, parts=()) for held in due]
        left_s = left(ends_at, self.stop_s)
        spared = {self.parent} if os.getppid() == self.parent else ()
        done = stop_writers(
            due, self.root, stop_s=left_s, reset=self.reset, spared=spared, is_mounting=self._is_mounting
        )
        if self._told != ends_at or done != Stopped(is_done=True):
            log.warning("the agent's lease has ended: its watchdog fenced %d volumes: %s", len(due), done)
        if done.is_done:
            self._told, self._lease.done_at = ends_at, boot_time()

    def _is_mounting(self) -> bool:
        """Whether a driver may still be mounting a volume. Its agent may be alive, and write down that it is not."""
        self._read()
        return self._plan is not None and any(held.open_calls for held in self._plan.volumes)

    def _read(self) -> None:
        try:
            self._plan = read_plan(self.state_dir) or self._plan
        except (OSError, ValueError) as error:
            log.warning("the fence plan cannot be read, and the last one counts: %s", error)


def run(watchdog: Watchdog) -> None:
    """Watch until there is nothing to watch."""
    while True:
        try:
            if not watchdog.look():
                return
        except Exception:
            log.exception("the watchdog failed, and tries again")
        time.sleep(_LOOK_S)


class _JsonLines(logging.Formatter):
    """Writes lines like the agent's (`common.logs`), without its asyncio."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "ts": f"{at}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": record.getMessage(),
        }
        if record.exc_info:
            line["exc"] = self.formatException(record.exc_info)
        return json.dumps(line, separators=(",", ":"))


def _log_as(log_format: str) -> None:
    """Log to the agent's standard error, in the format of `--log-format`."""
    is_text = log_format == "text" or (log_format != "json" and sys.stderr.isatty())
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s") if is_text else _JsonLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.raiseExceptions = False  # the agent's log may be gone


def main(argv: list[str]) -> None:
    """Run the watchdog of the command line."""
    state_dir, root, reset, stop_s, keeper, *log_format = argv
    _log_as("".join(log_format))
    watchdog = Watchdog(
        Path(state_dir), Path(root), Path(reset) if reset else None, float(stop_s), keeper, os.getppid()
    )
    os.chdir("/")
    os.write(1, READY)
    with Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), 1)  # the agent reads no further
    run(watchdog)


if __name__ == "__main__":
    main(sys.argv[1:])
