"""The commands `edge direct …`: show and change the direct volumes of this host, and ask their runtimes."""

import asyncio
import errno
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from cli.json_text import json_text
from cli.table import printable, say, table, terminal_width
from edge.direct.errors import (
    BadReply,
    DirectVolumeError,
    MountInfoBroken,
    NoSandbox,
    ShimGone,
    ShimRefused,
    StoreFailed,
    Unsupported,
)
from edge.direct.mount_info import MountInfo
from edge.direct.shim_client import ShimClient
from edge.direct.store import DirectVolumeStore
from edge.node_requests import VolumeStats

_LIST = "csi-bridge edge direct list shows the volumes"

_DO = {
    NoSandbox: "see that the pod runs; only Kata's Go runtime records its sandboxes",
    ShimGone: "see that the pod still runs, look at the log of its shim (containerd-shim-kata-v2), and try again",
    BadReply: "see that the sandbox is Kata's, of a version that docs/runtime-assisted.md lists",
    ShimRefused: "look at the log of the shim (containerd-shim-kata-v2)",
    Unsupported: "docs/runtime-assisted.md says what each version of Kata can do",
}
"""The advice for an error of a shim."""


class NoVolume(DirectVolumeError):
    """There is no direct volume at the path that the operator gave."""

    def __init__(self, volume_path: str) -> None:
        super().__init__(f"there is no direct volume at {volume_path}; {_LIST}")


@dataclass(frozen=True, slots=True)
class Host:
    """The direct volumes of a host, and the shims of its sandboxes."""

    store: DirectVolumeStore
    shim: ShimClient

    @classmethod
    def below(cls, run_dir: Path) -> Self:
        """The host whose /run is at this path."""
        return cls(DirectVolumeStore.below(run_dir), ShimClient.below(run_dir))

    def volume(self, volume_path: str) -> MountInfo:
        """The mount info of a volume.

        Raises:
            NoVolume: there is none.
            DirectVolumeError: it cannot be read.
        """
        info = self.store.get(volume_path)
        if info is None:
            raise NoVolume(volume_path)
        return info


def run(lines: Callable[[], Iterable[str]]) -> int:
    """Print the lines of a command. Returns the exit code: 1, with the reason on standard error, if it failed."""
    try:
        for line in lines():
            say(line)
    except DirectVolumeError as error:
        advice = _advice(error)
        say(f"csi-bridge: {error}{f'; {advice}' if advice else ''}", err=True)
        return 1
    return 0


def list_volumes(host: Host, *, as_json: bool) -> Iterator[str]:
    """The volumes with their devices and sandboxes; below the table, those whose mount info cannot be used.

    Raises:
        StoreFailed: they cannot be read.
    """
    found = [_entry(host, path) for path in host.store.volume_paths()]
    if as_json:
        yield json_text(found)
        return
    if not found:
        yield f"no direct volume below {host.store.root}"
        return
    yield from table(
        ("VOLUME", "DEVICE", "TYPE", "OPTIONS", "SANDBOX"),
        [
            (entry["path"], entry["device"], entry["fs_type"], ",".join(entry["options"]), _sandboxes(entry))
            for entry in found
        ],
        width=terminal_width(),
    )
    broken = [entry["error"] for entry in found if entry["error"]]
    if broken:
        yield ""
        yield from map(printable, broken)


def show_stats(host: Host, volume_path: str, *, as_json: bool) -> Iterator[str]:
    """The usage and the condition of a volume, as its guest sees them.

    Raises:
        DirectVolumeError: there is no volume, or no answer that can be used.
    """
    device = host.volume(volume_path).device
    stats = asyncio.run(host.shim.stats(host.store.sandbox_ids(volume_path), device))
    if as_json:
        yield json_text(asdict(stats))
        return
    yield from table(
        ("UNIT", "TOTAL", "USED", "AVAILABLE"),
        [
            ("bytes", str(stats.capacity_bytes), str(stats.used_bytes), str(stats.available_bytes)),
            ("inodes", str(stats.inodes), str(stats.inodes_used), str(stats.inodes_free)),
        ],
    )
    if stats.abnormal is not None:
        yield ""
        yield printable(_condition(stats))


def resize(host: Host, volume_path: str, size_bytes: int) -> Iterator[str]:
    """Let the guest grow a volume's file system.

    Raises:
        DirectVolumeError: there is no volume, or the guest may not have done it.
    """
    device = host.volume(volume_path).device
    asyncio.run(host.shim.resize(host.store.sandbox_ids(volume_path), device, size_bytes))
    yield f"the guest has grown the file system of {device} to {size_bytes} bytes"


def add(host: Host, volume_path: str, mount_info: str) -> Iterator[str]:
    """Tell the runtimes how to mount a volume. It replaces another mount info, unless a sandbox runs with that one.

    Raises:
        DirectVolumeError: the mount info cannot be used or written.
    """
    host.store.add(volume_path, MountInfo.parse(mount_info.encode()), is_live=host.shim.is_live)
    yield f"the runtimes mount {volume_path} from now on as a direct volume"


def remove(host: Host, volume_path: str) -> Iterator[str]:
    """Remove a volume, if there is one. A guest that has mounted it keeps it.

    Raises:
        StoreFailed: it cannot be removed.
    """
    if host.store.remove(volume_path):
        yield f"the runtimes no longer mount {volume_path} as a direct volume"
    else:
        yield f"there is no direct volume at {volume_path}"


def _entry(host: Host, path: str) -> dict[str, Any]:
    empty: dict[str, Any] = {"path": path, "device": "", "fs_type": "", "options": [], "metadata": {}}
    ids = host.store.sandbox_ids(path)
    sandboxes = [{"id": sandbox_id, "live": host.shim.is_live(sandbox_id)} for sandbox_id in ids]
    try:
        info = host.store.get(path)
    except MountInfoBroken as error:
        return {**empty, "sandboxes": sandboxes, "error": str(error)}
    if info is None:
        return {**empty, "sandboxes": sandboxes, "error": f"direct volume {path} has no mountInfo.json"}
    known = {"device": info.device, "fs_type": info.fs_type, "options": list(info.options)}
    return {**empty, **known, "metadata": {**info.metadata}, "sandboxes": sandboxes, "error": ""}


def _sandboxes(entry: dict[str, Any]) -> str:
    return ", ".join(f"{one['id']} {'(running)' if one['live'] else '(gone)'}" for one in entry["sandboxes"]) or "-"


def _condition(stats: VolumeStats) -> str:
    word = "abnormal" if stats.abnormal else "normal"
    return f"the volume is {word}: {stats.message}" if stats.message else f"the volume is {word}"


def _advice(error: DirectVolumeError) -> str:
    if isinstance(error, StoreFailed) and error.errno in {errno.EACCES, errno.EPERM}:
        return "run this as root"
    return _DO.get(type(error), "")
