"""A container image of busybox, as an archive that a runtime imports: no registry is needed.

The archive has the form of `docker save`: one layer, a configuration for each name, and a list of all.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import subprocess
import tarfile
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

IMAGE = "csi-bridge.test/busybox:1"
"""The one image of all pods, and of their sandboxes. Its name leads to no registry."""

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}

_UNTIL_STOPPED = "trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done"
"""A first process of a container ignores SIGTERM unless it says otherwise, and would be waited for."""


def write_archive(
    path: Path,
    *,
    busybox: Path,
    programs: Sequence[Path] = (),
    entrypoints: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Write the image to a file.

    Args:
        path: the new file.
        busybox: a busybox that needs no libraries.
        programs: what else is in ``/``, and needs none either.
        entrypoints: further names of the image, and the program that each begins with; empty for none.
    """
    layer = _layer(busybox, programs)
    manifest = []
    with tarfile.open(path, "w") as archive:
        _add(archive, "layer.tar", layer)
        for number, (name, entrypoint) in enumerate({IMAGE: "", **entrypoints}.items()):
            config = {
                "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
                "os": "linux",
                "config": {"Env": ["PATH=/bin"], **_process(entrypoint)},
                "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
            }
            _add(archive, f"config{number}.json", json.dumps(config).encode())
            manifest.append({"Config": f"config{number}.json", "RepoTags": [name], "Layers": ["layer.tar"]})
        _add(archive, "manifest.json", json.dumps(manifest).encode())


def _process(entrypoint: str) -> dict[str, list[str]]:
    return {"Entrypoint": [entrypoint]} if entrypoint else {"Cmd": ["sh", "-c", _UNTIL_STOPPED]}


def _layer(busybox: Path, programs: Sequence[Path]) -> bytes:
    listed = subprocess.run([busybox, "--list"], check=True, capture_output=True, text=True)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as layer:
        _add(layer, "bin/busybox", busybox.read_bytes(), mode=0o755)
        for applet in listed.stdout.split():
            if applet != "busybox":
                link = tarfile.TarInfo(f"bin/{applet}")
                link.type, link.linkname = tarfile.SYMTYPE, "busybox"
                layer.addfile(link)
        for program in programs:
            _add(layer, program.name, program.read_bytes(), mode=0o755)
        for name in ("tmp", "etc"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o777
            layer.addfile(folder)
    return buffer.getvalue()


def _add(archive: tarfile.TarFile, name: str, content: bytes, *, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    archive.addfile(entry, io.BytesIO(content))
