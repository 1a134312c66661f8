"""A tree: what a node has made for one driver's volumes below its root directory, as lines that can be compared.

A line is a path and what is there: kind, mode, group, a link's target, vol_data.json's content, what is mounted. What
belongs to other drivers or to no volume is left out.
"""

import json
import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.kit.leftovers import loop_devices

Tree = frozenset[str]  # lines, without an order

EMPTY: Tree = frozenset()

_CSI = Path("plugins/kubernetes.io/csi")
_IN_POD = (Path("volumes/kubernetes.io~csi"), Path("volumeDevices/kubernetes.io~csi"))
_DEVICES = ("", "staging", "publish")
_KINDS = {
    stat.S_IFDIR: "directory",
    stat.S_IFREG: "file",
    stat.S_IFLNK: "link",
    stat.S_IFBLK: "block device",
    stat.S_IFCHR: "character device",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
}


@dataclass(frozen=True)
class Mount:
    what: str
    options: str


def places(root: Path, *, driver: str, volumes: Iterable[str], pods: Iterable[str]) -> list[Path]:
    """Where a node puts what it makes for a driver's volumes.

    Args:
        root: the node's root directory, such as /var/lib/kubelet.
        driver: whose volumes.
        volumes: names of its PersistentVolumes.
        pods: UIDs of the pods that use them.
    """
    found = [root / _CSI / driver]
    found += [root / _CSI / "volumeDevices" / kind / volume for kind in _DEVICES for volume in volumes]
    return [*found, *(root / "pods" / pod / folder for pod in pods for folder in _IN_POD)]


def look(root: Path, tops: Iterable[Path], *, backing: Iterable[Path] = ()) -> Tree:
    """What there is at this moment.

    Args:
        root: the node's root directory.
        tops: where to look, with all below.
        backing: directories; loop devices on files below them count, and those on files below the tops.
    """
    tops = list(tops)
    mounts = _mounts(root)
    lines = {_line(root, path, mounts) for top in tops for path in _walk(top)}
    lines |= {f"loop device on {file}" for file in _loops((*tops, *backing))}
    return frozenset(line for line in lines if line)


def is_clean(tree: Tree) -> bool:
    """Whether nothing is left but empty directories outside of pods: no file, no link, no mount, no device."""
    return all(" directory " in line and " mounted " not in line and not line.startswith("pods/") for line in tree)


def _walk(top: Path) -> Iterator[Path]:
    """A path and all below it. What vanishes meanwhile is not there; links are not followed."""
    if not os.path.lexists(top):
        return
    yield top
    if top.is_dir() and not top.is_symlink():
        for directory, folders, files in os.walk(top):
            yield from (Path(directory) / name for name in (*folders, *files))


def _line(root: Path, path: Path, mounts: Mapping[str, list[Mount]]) -> str:
    try:
        found = path.lstat()
        text = f"{path.relative_to(root)} {_KINDS[stat.S_IFMT(found.st_mode)]} {stat.S_IMODE(found.st_mode):04o}"
        if found.st_gid:
            text += f" group {found.st_gid}"
        if stat.S_ISLNK(found.st_mode):
            text += f" -> {path.readlink()}"
        if path.name == "vol_data.json":
            text += f" {_content(path)}"
    except FileNotFoundError:
        return ""
    return text + "".join(f" mounted {mount.what} {mount.options}" for mount in mounts.get(str(path), ()))


def _content(path: Path) -> str:
    text = path.read_text(errors="replace")
    try:
        return json.dumps(json.loads(text), sort_keys=True)
    except ValueError:
        return f"which is no JSON: {text[:200]!r}"


def _mounts(root: Path) -> dict[str, list[Mount]]:
    found: dict[str, list[Mount]] = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, right = line.split(" - ")
        _, _, _, _, point, options, *_ = left.split()
        kind, source, *_ = right.split()
        if point.startswith(f"{root}/"):
            found.setdefault(_unescaped(point), []).append(Mount(_what(kind, source), options))
    return found


def _what(kind: str, source: str) -> str:
    """What is mounted, in words that are the same on every machine: whose filesystem a bind is of differs."""
    if source.startswith("/dev/loop"):
        return kind
    return "device" if kind == "devtmpfs" else "bind"


def _unescaped(point: str) -> str:
    return point.encode().decode("unicode_escape")


def _loops(below: Iterable[Path]) -> Iterator[str]:
    places = tuple(f"{path}" for path in below)
    seen = Counter(str(file) for _, file in loop_devices() if str(file).startswith(places))
    yield from (f"{file}, {count} times" if count > 1 else file for file, count in seen.items())
