"""The machine's data as a kubelet would report it: its resources for pods, and its software.

A value that cannot be read is left out: a node without one value is better than no node.
"""

import os
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from common.objects.quantity import format_bytes
from common.observe.version import SOFTWARE

_PODS: Final = 110  # the most pods of one node: the kubelet's default (`maxPods`)

# Go's names of architectures by the kernel's names, where they differ: pods' node selectors use Go's.
_ARCHITECTURES: Final[Mapping[str, str]] = {
    "x86_64": "amd64", "aarch64": "arm64", "armv6l": "arm", "armv7l": "arm", "i386": "386", "i686": "386",
    "loongarch64": "loong64",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine's data."""

    capacity: Mapping[str, str]  # the Node's `status.capacity`: quantities by resource
    info: Mapping[str, str]  # the Node's `status.nodeInfo`


def read_machine(root_dir: Path, *, files: Path = Path("/")) -> Machine:
    """Read this machine's data. The file system of `root_dir` is the pods' ephemeral storage."""
    release = dict(_settings(_read(files / "etc/os-release")))
    machine_id = _read(files / "etc/machine-id").strip()
    kernel = platform.uname()
    info = {
        "architecture": _ARCHITECTURES.get(kernel.machine, kernel.machine),
        "bootID": _read(files / "proc/sys/kernel/random/boot_id").strip(),
        "kernelVersion": kernel.release,
        "kubeletVersion": SOFTWARE,  # the agent stands in for the kubelet
        "machineID": machine_id,
        "operatingSystem": kernel.system.lower(),
        "osImage": release.get("PRETTY_NAME", ""),
        "systemUUID": _read(files / "sys/class/dmi/id/product_uuid").strip() or machine_id,
    }
    return Machine(dict(_capacity(root_dir, files)), info)


def _capacity(root_dir: Path, files: Path) -> Iterator[tuple[str, str]]:
    yield "cpu", str(os.cpu_count() or 1)
    for line in _read(files / "proc/meminfo").splitlines():
        match line.split():
            case ["MemTotal:", size, "kB"] if size.isdecimal():
                yield "memory", format_bytes(int(size) * 1024)
    try:
        disk = os.statvfs(root_dir)
        yield "ephemeral-storage", format_bytes(disk.f_blocks * disk.f_frsize)
    except OSError:
        pass  # left out, like the other values
    yield "pods", str(_PODS)


def _settings(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals:
            yield name.strip(), value.strip().strip("\"'")


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
