"""The pool: where the data of volumes and snapshots lies. One folder each, named by its id.

    volumes/<id>/data     a directory volume
    volumes/<id>/image    a sparse file: filesystem and block volumes
    snapshots/<id>/…      the same for snapshots
    trash/                what is being removed: out of sight at once, gone when the work is done

Every method can be repeated after a crash in the middle of it.
"""

import shutil
from pathlib import Path

from examples.dirdriver.commands import run
from examples.dirdriver.store import flush
from tests.kit.testdriver.access import Layout
from tests.kit.testdriver.copies import copy_image, copy_tree
from tests.kit.testdriver.images import create_image
from tests.kit.testdriver.records import Content, Snapshot, Volume

DIRECTORY_MODE = 0o777
"""Of a volume's root directory: pods run as any user, and not every CO applies fsGroup."""


class Pool:
    """The folders of one state directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("volumes", "snapshots", "trash"):
            (root / name).mkdir(parents=True, exist_ok=True)

    def data(self, content: Content) -> Path:
        """The directory or the image of a volume or a snapshot."""
        return self._folder(content) / ("data" if content.layout is Layout.DIRECTORY else "image")

    def _folder(self, content: Content) -> Path:
        match content:
            case Volume():
                return self.root / "volumes" / content.volume_id
            case Snapshot():
                return self.root / "snapshots" / content.snapshot_id
        raise TypeError(f"{type(content).__name__} has no data")

    def make(self, content: Content, source: Content | None = None) -> None:
        """Make the data of a new volume or snapshot: empty, or a copy. Nothing of it may exist yet.

        Raises:
            OSError: it could not be made; `remove` clears what is there. So does a CsiError.
        """
        data = self.data(content)
        data.parent.mkdir()
        if content.layout is Layout.DIRECTORY:
            data.mkdir()
            data.chmod(DIRECTORY_MODE)  # mkdir's mode would be cut by the umask
        if source is not None:
            copy = copy_tree if content.layout is Layout.DIRECTORY else copy_image
            copy(self.data(source), data)
            run("sync", "--file-system", str(data.parent))  # one flush for a whole tree, not one a file
        if content.layout is not Layout.DIRECTORY and isinstance(content, Volume):
            create_image(data, content.size_bytes)
        for folder in (data.parent, data.parent.parent):
            flush(folder)

    def grow(self, content: Content, size_bytes: int) -> None:
        """Make room for a larger volume. A directory has no size of its own."""
        if content.layout is not Layout.DIRECTORY:
            create_image(self.data(content), size_bytes)

    def remove(self, content: Content) -> None:
        """Remove the data, whatever of it is there."""
        folder = self._folder(content)
        trash = self.root / "trash" / folder.name
        shutil.rmtree(trash, ignore_errors=True)
        if folder.exists():
            folder.rename(trash)
            flush(folder.parent)
        if trash.exists():
            shutil.rmtree(trash)
