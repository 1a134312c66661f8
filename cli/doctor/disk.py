"""A directory: checks that a process can write its state there, and that it has room."""

import os
import stat
from pathlib import Path

from cli.doctor.finding import Finding, Level, ok, warning, wrong

_FULL_BYTES, _FULL_FILES = 1 << 20, 10
"""With less, a database cannot be written."""

_LOW_BYTES, _LOW_FILES = 256 << 20, 1_000
"""Several times the size of a store with ten thousand objects and its log."""


def check_directory(path: Path, *, flag: str) -> Finding:
    """Whether a directory is there, can be written, and has room."""
    try:
        found, room = path.stat(), os.statvfs(path)
    except OSError as error:
        return wrong(f"{path} cannot be used: {error.strerror or error}", f"make it, or name another one by {flag}")
    if not stat.S_ISDIR(found.st_mode):
        return wrong(f"{path} is not a directory", f"name another one by {flag}")
    if not os.access(path, os.W_OK | os.X_OK):
        do = "mount it read-write, or give it to the process's user; run the doctor as that user"
        return wrong(f"{path} cannot be written", do)
    return check_room(path, room.f_bavail * room.f_frsize, room.f_favail if room.f_files else _LOW_FILES)


def check_state(path: Path) -> Finding:
    """Whether a state directory can be used, and is closed to all other users of the host: it holds secrets."""
    found = check_directory(path, flag="--state-dir")
    if found.level is Level.OK and (mode := stat.S_IMODE(path.stat().st_mode)) & (stat.S_IRWXG | stat.S_IRWXO):
        return warning(f"other users of this host may look into {path} (mode {mode:04o})", f"chmod 0700 {path}")
    return found


def check_room(path: Path, free_bytes: int, free_files: int) -> Finding:
    """Whether the file system of a directory has so many bytes and files free that a process can go on."""
    room = f"{free_bytes >> 20} MiB free, room for {free_files} files"
    if free_bytes < _FULL_BYTES or free_files < _FULL_FILES:
        do = "make room; the process then writes by itself what waits in memory"
        return wrong(f"the disk of {path} is full ({room})", do)
    if free_bytes < _LOW_BYTES or free_files < _LOW_FILES:
        return warning(f"the disk of {path} is almost full ({room})", "make room")
    return ok(f"{path} can be written ({room})")
