"""A machine that can be switched off: a mount namespace of its own, and with each boot another one.

    machine = Machine(directory, logs)
    machine.boot()
    machine.inside(["mount", ...])      # the command that runs there
    machine.seen(path).read_text()      # what lies there, as its processes see it
    machine.power_off()                 # every mount made in it is gone, and so are the loop devices given

Processes that run in it have to be killed before it is switched off: the kernel unmounts everything with the last one.
"""

from __future__ import annotations

import subprocess
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.processes import Process

if TYPE_CHECKING:
    from collections.abc import Sequence

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

_HOLD = 'mount --bind "$0" "$1" && exec sleep infinity'


class Machine:
    """See the module."""

    def __init__(self, directory: Path, logs: Path, *, shares: bool = False) -> None:
        """A machine that is off.

        Args:
            directory: for what it needs itself.
            logs: for its log.
            shares: whether mounts made in it come to mount namespaces that begin in it.
        """
        self._directory = directory
        self._propagation = "shared" if shares else "private"
        self._holder = Process("machine", [], log=logs / "machine.log")

    @property
    def is_on(self) -> bool:
        """Whether it was booted, and not switched off since."""
        return self._holder.running

    def boot(self) -> None:
        """Begin a new life: the mounts are the test's own, the boot's id is a new one."""
        boot_id = self._directory / "boot_id"
        boot_id.write_text(f"{uuid.uuid4()}\n")
        words = ["unshare", "--mount", "--propagation", self._propagation, "--", "sh", "-c", _HOLD]
        self._holder.command = [*words, str(boot_id), str(_BOOT_ID)]
        self._holder.start()
        self._holder.wait_until(lambda: f" {_BOOT_ID} " in self._mountinfo(), what="own mount namespace")

    def inside(self, command: Sequence[object]) -> list[str]:
        """A command as it has to be started to run in it, in this life."""
        return ["nsenter", f"--mount=/proc/{self._holder.pid}/ns/mnt", "--", *(str(word) for word in command)]

    def seen(self, path: Path) -> Path:
        """Where the test finds what is at a path there."""
        return Path(f"/proc/{self._holder.pid}/root{path}")

    def mounts(self, below: Path) -> list[str]:
        """The mount points below a directory."""
        lines = self._mountinfo().splitlines()
        return [path for line in lines if (path := line.split(" ")[4]).startswith(f"{below}/")]

    def power_off(self, loops: Sequence[str | Path] = ()) -> None:
        """End it, and detach the loop devices that no reboot would leave."""
        self._holder.kill()
        for device in loops:
            subprocess.run(["losetup", "--detach", str(device)], check=True)

    def _mountinfo(self) -> str:
        return Path(f"/proc/{self._holder.pid}/mountinfo").read_text()
