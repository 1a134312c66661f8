"""A holder: a process that can write to a mounted volume.

Rules:

* Of the agent's own mount namespace, or the machine's first one: a process that has a file of the volume open or
  mapped, or stands in it. Others there can write only through the mount, and the fence unmounts it. The kernel refuses
  that as long as there is one, so nobody is looked for once it is unmounted.
* Of another mount namespace: every process, if the namespace has the volume mounted at a path of its own. So does a
  container, whose processes may open a file at any time. Copies of the agent's mounts and paths of a kubelet do not
  count: a driver's container sees the mounts there, and loses them with the agent's.
* Once the agent's namespace has the volume no more, these count as well: such a mount is a private copy.
* /proc shows all this without a look at the file system itself, which may hang. But a process's maps cannot be read
  while its memory is locked, so they are asked for apart.
"""

import os
import signal
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path

from edge.disk.mounts import Mount, parse
from edge.fencing.plan import Part

_PROC = Path("/proc")

_KUBELETS = ("/volumes/kubernetes.io~csi/", "/plugins/kubernetes.io/csi/")
"""In the paths at which a kubelet, or this agent, has volumes mounted."""


def holders(
    parts: Collection[Part],
    points: Collection[str],
    *,
    spared: Collection[int],
    is_anothers: Callable[[str], bool] = lambda _path: False,
) -> Iterator[tuple[int, str]]:
    """Yield the holders of volumes, but for those that have only mapped a file: process id, and how it holds one.

    Args:
        parts: the parts of file systems that the volumes are.
        points: where the agent's namespace has them mounted.
        spared: processes that are not looked at.
        is_anothers: tells the mount points of other volumes, which may be of the same file system.
    """
    if not parts and not points:
        return
    own = {_namespace("self"), _namespace("1")}
    known: dict[tuple[str, str], str] = {}
    for pid in _pids(spared):
        if (namespace := _namespace(str(pid))) is None:
            continue
        view = (namespace, _root(pid))  # below another root, a process may see other mounts
        if namespace not in own and view not in known:
            seen = _mounted_in(pid, parts, points, is_anothers)
            if seen is not None:
                known[view] = seen
        why = known.get(view, "") or _use(pid, points)
        if why:
            yield pid, f"{_name(pid)} ({why})"


def mappers(points: Collection[str], *, spared: Collection[int]) -> Iterator[tuple[int, str]]:
    """Yield the processes that have mapped a file below a mount point, like `holders`. It may hang at any of them."""
    for pid in _pids(spared) if points else ():
        with suppress(OSError):
            text = os.fsdecode((_PROC / str(pid) / "maps").read_bytes())
            if any(point in text for point in points) and any(
                _is_below(line.split(maxsplit=5)[-1], points) for line in text.splitlines()
            ):
                yield pid, f"{_name(pid)} (has a file of it mapped)"


def kill(pid: int) -> None:
    """Kill a process. One that is gone, or that the kernel protects, is left to the next look."""
    with suppress(OSError):
        os.kill(pid, signal.SIGKILL)


def parts_of(mounts: Collection[Mount]) -> set[Part]:
    """The parts of file systems that are mounted there."""
    return {(mount.device, mount.root, mount.source) for mount in mounts}


def is_of(mount: Mount, part: Part) -> bool:
    """Whether a mount shows a part of a file system, or something in it."""
    device, root, source = part
    return (mount.device, mount.source) == (device, source) and _is_within(mount.root, root)


def _pids(spared: Collection[int]) -> Iterator[int]:
    for name in os.listdir(_PROC):  # noqa: PTH208  # a Path for each file of each process takes a second
        # Killing process 1 stops the machine in the worst way; the reset is for that.
        if name.isdigit() and name != "1" and int(name) not in spared:
            yield int(name)


def _namespace(pid: str) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/ns/mnt")  # noqa: PTH115  # as in `_pids`
    except OSError:  # it has ended
        return None


def _root(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/root")  # noqa: PTH115  # as in `_pids`
    except OSError:
        return ""


def _mounted_in(
    pid: int, parts: Collection[Part], points: Collection[str], is_anothers: Callable[[str], bool]
) -> str | None:
    """How a process's namespace has a volume mounted; empty if it has none, None if the process has ended."""
    try:
        text = os.fsdecode((_PROC / str(pid) / "mountinfo").read_bytes())
    except OSError:
        return None
    for mount in parse(text):
        if any(is_of(mount, part) for part in parts) and not is_anothers(mount.path):
            is_copy = _is_kubelets(mount.path) or any(mount.path.endswith(point) for point in points)
            if not points or not is_copy:
                return f"has {'a copy of ' if is_copy else ''}it mounted at {mount.path}"
    return ""


def _use(pid: int, points: Collection[str]) -> str:
    """How a process uses a file below a mount point; empty if it uses none."""
    if not points:
        return ""
    folder = f"/proc/{pid}"
    uses = {f"{folder}/{name}": f"uses it by its {name}" for name in ("cwd", "root", "exe")}
    with suppress(OSError):
        for name in os.listdir(f"{folder}/fd"):  # noqa: PTH208  # as in `_pids`
            uses[f"{folder}/fd/{name}"] = "has a file of it open"
    for link, use in uses.items():
        with suppress(OSError):
            if _is_below(os.readlink(link), points):  # noqa: PTH115  # as in `_pids`
                return use
    return ""


def _is_below(path: str, points: Collection[str]) -> bool:
    return any(_is_within(path, point) or (_is_kubelets(point) and _is_seen_below(path, point)) for point in points)


def _is_seen_below(path: str, point: str) -> bool:
    """Whether a path of a process is below a point, as a container sees it that has the node's root elsewhere."""
    return f"{point}/" in path or path.endswith(point)


def _is_kubelets(path: str) -> bool:
    return any(part in path for part in _KUBELETS)


def _is_within(path: str, base: str) -> bool:
    return base in {path, "/"} or path.startswith(f"{base}/")


def _name(pid: int) -> str:
    try:
        name = (_PROC / str(pid) / "comm").read_text(errors="replace").strip()
    except OSError:
        name = "?"
    return f"process {pid} {name!a}"
