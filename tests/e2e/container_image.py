"""A container image of busybox, as an archive that a runtime imports: no registry is needed.

The archive has the form of `docker save`: one layer, a configuration for each name, and a list of all.
"""

import hashlib
import io
import json
import platform
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

IMAGE = "csi-bridge.test/busybox:1"  # The one image of all pods, and of their sandboxes. Its name leads to no registry.

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
    layer = path.with_suffix(".layer")
    _write_layer(layer, busybox, programs)
    names = {IMAGE: "", **entrypoints}
    cmd = {"Cmd": ["sh", "-c", _UNTIL_STOPPED]}
    write_images(
        path,
        layer,
        {
            name: {"Env": ["PATH=/bin"], **({"Entrypoint": [entrypoint]} if entrypoint else cmd)}
            for name, entrypoint in names.items()
        },
    )


def write_images(path: Path, layer: Path, images: Mapping[str, Mapping[str, object]]) -> None:
    """Write images of one layer to a file, and remove the layer.

    Args:
        path: the new file.
        layer: the archive of their files.
        images: each image's name, and the configuration of its containers.
    """
    with layer.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    manifest = []
    with tarfile.open(path, "w") as archive:
        archive.add(layer, "layer.tar")
        for number, (name, containers) in enumerate(images.items()):
            config = {
                "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
                "os": "linux",
                "config": containers,
                "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
            }
            add(archive, f"config{number}.json", json.dumps(config).encode())
            manifest.append({"Config": f"config{number}.json", "RepoTags": [name], "Layers": ["layer.tar"]})
        add(archive, "manifest.json", json.dumps(manifest).encode())
    layer.unlink()


def _write_layer(path: Path, busybox: Path, programs: Sequence[Path]) -> None:
    listed = subprocess.run([busybox, "--list"], check=True, capture_output=True, text=True)
    with tarfile.open(path, "w") as layer:
        add(layer, "bin/busybox", busybox.read_bytes(), mode=0o755)
        for applet in listed.stdout.split():
            if applet != "busybox":
                link = tarfile.TarInfo(f"bin/{applet}")
                link.type, link.linkname = tarfile.SYMTYPE, "busybox"
                layer.addfile(link)
        for program in programs:
            add(layer, program.name, program.read_bytes(), mode=0o755)
        for name in ("tmp", "etc"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o777
            layer.addfile(folder)


def add(archive: tarfile.TarFile, name: str, content: bytes, *, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    archive.addfile(entry, io.BytesIO(content))
