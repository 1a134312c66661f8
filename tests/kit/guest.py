"""A stand-in for a micro-VM: it reads a direct volume's mount info as Kata's Go runtime does, and mounts the device.

    with Guest(run_dir, target) as volume:      # the OCI mount's source, as the runtime gets it
        (volume / "file").write_text("hello")

It reads the mount info by the path's key, leaves the file with its sandbox's id, mounts the file system at a directory
of its own, and gives the files to the fsGroup. It is written from the format alone, and shares no code with the agent.
"""

import base64
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

STORE = "kata-containers/shared/direct-volumes"
SANDBOX = "5a4db0c5" * 4


def folder(run_dir: Path, target: Path) -> Path:
    return run_dir / STORE / base64.urlsafe_b64encode(os.path.realpath(target).encode()).decode()


def mount_info(run_dir: Path, target: Path) -> dict[str, Any]:
    """Return what the runtime reads about a volume."""
    found: dict[str, Any] = json.loads((folder(run_dir, target) / "mountInfo.json").read_bytes())
    return found


class Guest:
    """A running sandbox with one volume; a context manager that gives the volume's directory.

    Attributes:
        run_dir: the runtime's `/run`.
        target: the OCI mount's source.
        inside: a command that runs another one on the node's machine, as `Machine.inside`; None: this one.
    """

    def __init__(self, run_dir: Path, target: Path, *, inside: Any = None) -> None:
        self.run_dir, self.target, self._inside = run_dir, target, inside or (lambda command: command)
        self._place: Path | None = None

    def __enter__(self) -> Path:
        info = mount_info(self.run_dir, self.target)
        assert info["volume-type"] == "directvol"
        (folder(self.run_dir, self.target) / SANDBOX).touch(mode=0o600)
        self._place = Path(tempfile.mkdtemp(prefix="guest-"))
        options = ["-o", ",".join(info["options"])] if info.get("options") else []
        self._run("mount", "-t", info["fstype"], *options, info["device"], self._place)
        if group := info.get("metadata", {}).get("fsGroup"):
            self._run("chgrp", "-R", group, self._place)
            self._run("chmod", "-R", "g+rwXs", self._place)
        return self._place

    def __exit__(self, *_: object) -> None:
        assert self._place is not None
        self._run("umount", self._place)
        shutil.rmtree(self._place)
        (folder(self.run_dir, self.target) / SANDBOX).unlink(missing_ok=True)  # the sandbox is gone

    def _run(self, *command: object) -> None:
        subprocess.run(self._inside([str(word) for word in command]), check=True, capture_output=True, text=True)
