"""A directory: checks that a process can write its state there, and that other namespaces see mounts below it."""

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from cli.doctor.finding import Finding, Level, ok, warning, wrong
from edge.disk.mounts import Mount

_FULL_BYTES, _FULL_FILES = 1 << 20, 10
"""With less, a database cannot be written."""

_LOW_BYTES, _LOW_FILES = 256 << 20, 1_000
"""Several times the size of a store with ten thousand objects and its log."""


def check_directory(path: Path, *, flag: str) -> Finding:
    """Whether there is a directory that can be written, with room in it, and closed to others."""
    try:
        found = path.stat()
        room = os.statvfs(path)
    except OSError as error:
        return wrong(f"{path} cannot be used: {error.strerror or error}", f"make it, or name another one by {flag}")
    if not stat.S_ISDIR(found.st_mode):
        return wrong(f"{path} is not a directory", f"name another one by {flag}")
    if not os.access(path, os.W_OK | os.X_OK):
        do = "mount it read-write, or give it to the process's user; run the doctor as that user"
        return wrong(f"{path} cannot be written", do)
    if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
        return warning(f"every user of this host may write {path}", f"chmod o-rwx {path}")
    return check_room(
        path, free_bytes=room.f_bavail * room.f_frsize, free_files=room.f_favail if room.f_files else None
    )


def check_state(path: Path) -> Finding:
    """Whether a state directory can be used, and is closed to all other users of the host: it holds secrets."""
    found = check_directory(path, flag="--state-dir")
    if found.level is not Level.OK:
        return found
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        return warning(f"other users of this host may look into {path} (mode {mode:04o})", f"chmod 0700 {path}")
    return found


def check_secret_file(path: Path, *, flag: str) -> Finding:
    """Whether a file with a secret is there, and closed to users outside of its group."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        path.open("rb").close()
    except OSError as error:
        return wrong(f"{path} cannot be read: {error.strerror or error}", f"correct {flag}")
    if mode & stat.S_IRWXO:
        return warning(f"every user of this host may read {path} (mode {mode:04o})", f"chmod o-rwx {path}")
    return ok(f"{path} is closed to other users")


def check_room(path: Path, *, free_bytes: int, free_files: int | None) -> Finding:
    """Whether a directory has room.

    Args:
        path: the directory.
        free_bytes: the free space of its file system.
        free_files: how many files it can still hold; None if it does not limit them.
    """
    room = f"{free_bytes >> 20} MiB free" + (f", room for {free_files} files" if free_files is not None else "")
    files = _LOW_FILES if free_files is None else free_files
    if free_bytes < _FULL_BYTES or files < _FULL_FILES:
        return wrong(
            f"the disk of {path} is full ({room})", "make room; the process then writes by itself what waits in memory"
        )
    if free_bytes < _LOW_BYTES or files < _LOW_FILES:
        return warning(f"the disk of {path} is almost full ({room})", "make room")
    return ok(f"{path} can be written ({room})")


def check_propagation(path: Path, mounts: Iterable[Mount]) -> Finding:
    """Whether other mount namespaces see mounts below a directory.

    Args:
        path: the directory, without symbolic links.
        mounts: the mount table, in its order: a later one covers an earlier one.
    """
    point, shared = "/", False
    for mount in mounts:
        if len(mount.path) >= len(point) and path.is_relative_to(mount.path):
            point, shared = mount.path, mount.shared
    if shared:
        return ok(f"mounts below {path} are seen by other mount namespaces (shared at {point})")
    return warning(
        f"mounts below {path} are seen in this mount namespace alone ({point} is not shared)",
        f"in a container, mount {path} with mountPropagation: Bidirectional; on a host, mount --make-rshared {point}; "
        f"if the driver, the agent and the pods all run in this mount namespace, do nothing",
    )
