"""A directory: checks that a process can write its state there, and that it has room."""

import os
import stat
from pathlib import Path

from cli.doctor.finding import Finding, Level, ok, warning, wrong
from common.store.files import room_of, why_full

_LOW_BYTES, _LOW_FILES = 256 << 20, 1_000  # several times the size of a store with ten thousand objects and its log


def check_directory(path: Path, *, flag: str) -> Finding:
    try:
        found, (free_bytes, free_files) = path.stat(), room_of(path)
    except OSError as error:
        return wrong(f"{path} cannot be used: {error.strerror or error}", f"make it, or name another one by {flag}")
    if not stat.S_ISDIR(found.st_mode):
        return wrong(f"{path} is not a directory", f"name another one by {flag}")
    if not os.access(path, os.W_OK | os.X_OK):
        do = "mount it read-write, or give it to the process's user; run the doctor as that user"
        return wrong(f"{path} cannot be written", do)
    return check_room(path, free_bytes, free_files)


def check_state(path: Path) -> Finding:
    # Others may not look into it: it holds secrets.
    found = check_directory(path, flag="--state-dir")
    if found.level is Level.OK and (mode := stat.S_IMODE(path.stat().st_mode)) & (stat.S_IRWXG | stat.S_IRWXO):
        return warning(f"other users of this host may look into {path} (mode {mode:04o})", f"chmod 0700 {path}")
    return found


def check_room(path: Path, free_bytes: int, free_files: int | None) -> Finding:
    if why := why_full(path, free_bytes, free_files):
        return wrong(why, "the process then writes by itself what waits in memory")
    room = f"{free_bytes >> 20} MiB free" + (f", room for {free_files} files" if free_files is not None else "")
    if free_bytes < _LOW_BYTES or (free_files is not None and free_files < _LOW_FILES):
        return warning(f"the disk of {path} is almost full ({room})", "make room")
    return ok(f"{path} can be written ({room})")
