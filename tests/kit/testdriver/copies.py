"""A copy: of an image or of a directory tree. Done in this process, so that killing it ends the copy as well."""

import os
import shutil
import stat
from pathlib import Path

from tests.kit.testdriver.images import allocated

STEP_BYTES = 64 * 1024 * 1024
"""How much the kernel is asked to copy at once."""


def copy_image(source: Path, target: Path) -> None:
    """Copy an image; holes stay holes. The filesystem below shares the blocks if it can (copy_file_range(2)).

    Like everything here, the copy is not on the disk before the caller flushes it.
    """
    with source.open("rb") as reading, target.open("wb") as writing:
        os.ftruncate(writing.fileno(), os.fstat(reading.fileno()).st_size)
        for extent in allocated(source):
            position = extent.start
            while position < extent.end:
                length = min(STEP_BYTES, extent.end - position)
                copied = os.copy_file_range(reading.fileno(), writing.fileno(), length, position, position)
                if not copied:  # the source became shorter under our hands
                    raise OSError(f"{source} ended early while it was copied")
                position += copied


def copy_tree(source: Path, target: Path) -> None:
    """Copy what is in a directory into another one that exists: names, data, links, owners, modes, times, attributes.

    Hard links become files of their own. Names are not followed out of the tree: links are copied as links.
    """
    with os.scandir(source) as entries:
        for entry in entries:
            copy = target / entry.name
            if entry.is_dir(follow_symlinks=False):
                copy.mkdir()
                copy_tree(Path(entry.path), copy)
            else:
                _copy_leaf(Path(entry.path), copy)
    _copy_marks(source, target)  # last: writing into a directory changes its times


def _copy_leaf(source: Path, target: Path) -> None:
    mode = source.lstat().st_mode
    if stat.S_ISLNK(mode):
        target.symlink_to(source.readlink())
    elif stat.S_ISREG(mode):
        copy_image(source, target)
    elif stat.S_ISSOCK(mode):
        return  # means nothing without the process that listens on it
    else:
        os.mknod(target, mode, source.lstat().st_rdev)
    _copy_marks(source, target)


def _copy_marks(source: Path, target: Path) -> None:
    marks = source.lstat()
    if os.geteuid() == 0:
        os.chown(target, marks.st_uid, marks.st_gid, follow_symlinks=False)
    shutil.copystat(source, target, follow_symlinks=False)
