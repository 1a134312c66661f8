"""A machine that can be switched off: a mount namespace of its own, and a new one with each boot.

A test uses it so:

    machine = Machine(directory, logs)
    machine.boot()
    machine.inside(["mount", ...])      # a command that runs there
    machine.seen(path).read_text()      # its file
    machine.power_off()                 # unmounts all

Kill the processes in it before switching it off: the kernel unmounts everything when the last one ends.
"""

import subprocess
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path

from tests.kit.processes import Process

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

# A new mount namespace has a copy of every mount, and so would keep the loop devices of other tests' volumes attached.
_HOLD = """
for foreign in $(cut -d " " -f 5 /proc/self/mountinfo | grep "^$2/csi-" | sort -r); do umount --lazy "$foreign"; done
mount --bind "$0" "$1" && exec sleep infinity
"""


class Machine:
    """The machine."""

    def __init__(self, directory: Path, logs: Path, *, shares: bool = False) -> None:
        """Make a machine that is off.

        Args:
            directory: for its own files.
            shares: mounts made in it appear in mount namespaces that begin in it.
        """
        self._directory = directory
        self._propagation = "shared" if shares else "private"
        self._holder = Process("machine", [], log=logs / "machine.log")

    @property
    def is_on(self) -> bool:
        """Whether it was booted, and not switched off since."""
        return self._holder.running

    def boot(self) -> None:
        """Start a new boot: the mounts are the test's own, the boot id is new."""
        boot_id = self._directory / "boot_id"
        boot_id.write_text(f"{uuid.uuid4()}\n")
        words = ["unshare", "--mount", "--propagation", self._propagation, "--", "sh", "-c", _HOLD]
        self._holder.command = [*words, str(boot_id), str(_BOOT_ID), tempfile.gettempdir()]
        self._holder.start()
        self._holder.wait_until(lambda: f" {_BOOT_ID} " in self._mountinfo(), what="own mount namespace")

    def inside(self, command: Sequence[object]) -> list[str]:
        """Return the command that runs `command` in it, in this boot."""
        return ["nsenter", f"--mount=/proc/{self._holder.pid}/ns/mnt", "--", *(str(word) for word in command)]

    def seen(self, path: Path) -> Path:
        """Return the path at which the test sees one of its paths."""
        return Path(f"/proc/{self._holder.pid}/root{path}")

    def mounts(self, below: Path) -> list[str]:
        """Return the mount points below a directory."""
        lines = self._mountinfo().splitlines()
        return [path for line in lines if (path := line.split(" ")[4]).startswith(f"{below}/")]

    def power_off(self, loops: Sequence[str | Path] = ()) -> None:
        """Switch it off, which removes its mounts, and detach the loop devices that a reboot would not leave."""
        self._holder.kill()
        for device in loops:
            subprocess.run(["losetup", "--detach", str(device)], check=True)

    def _mountinfo(self) -> str:
        return Path(f"/proc/{self._holder.pid}/mountinfo").read_text()
