"""The images that deploy/ names, made of what this machine has: no registry is needed.

All are one layer. The project and its requirements are in /opt/csi-bridge, as in those of deploy/images. Python and
the programs that the example driver calls are where they are here, with their libraries. The sidecars are in ``/``.
"""

import importlib.metadata
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from packaging.requirements import Requirement

from tests.e2e.container_image import add, write_images
from tests.kit.deployed import ROOT

BIN = Path(sys.executable).parent  # of the environment that runs the tests

OPT = Path("/opt/csi-bridge")  # of the environment in the images

TOOLS = ("mount", "umount", "losetup", "blockdev", "sync", "cp")  # the programs that the example driver runs

_PATH = f"{OPT}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/busybox"
_SITE = OPT / "lib" / Path(sysconfig.get_path("purelib")).relative_to(BIN.parent / "lib")
_SOURCES = ("cli", "cloud", "common", "edge", "examples")
_UNNEEDED = {
    "test",
    "tests",
    "idlelib",
    "tkinter",
    "turtledemo",
    "ensurepip",
    "lib2to3",
    "site-packages",
    "dist-packages",
}


def write_archive(path: Path, *, programs: Mapping[str, Path], busybox: Path, images: Mapping[str, list[str]]) -> None:
    """Write the images to a file, in the form of `docker save`.

    Args:
        path: the new file.
        programs: names in ``/``, and the programs of this machine that they are.
        busybox: a busybox that needs no libraries.
        images: each image's name, and the command that its containers begin with.
    """
    layer = path.with_suffix(".layer")
    with tarfile.open(layer, "w", dereference=True) as tar:
        _fill(tar, programs, busybox)
    environment = {"Env": [f"PATH={_PATH}", "PYTHONDONTWRITEBYTECODE=1"]}
    write_images(
        path,
        layer,
        {
            name: {**environment, **({"Entrypoint": command} if command else {"Cmd": ["/bin/sh"]})}
            for name, command in images.items()
        },
    )


def _fill(tar: tarfile.TarFile, programs: Mapping[str, Path], busybox: Path) -> None:
    files = set(_standard_library()) | {Path(found) for name in TOOLS if (found := _which(name))}
    files.add(Path(sys.executable).resolve())
    ours = {_inside(it): it for it in _packages() if it.suffix != ".pth"}
    ours |= {_SITE / it.relative_to(ROOT): it for name in _SOURCES for it in (ROOT / name).rglob("*") if it.is_file()}
    linked = {it for it in (*files, *ours.values()) if it.suffix == ".so" or it.parent.name in {"bin", "sbin"}}
    files |= set(_libraries(linked | set(programs.values())))
    for folder, mode in (("tmp", 0o1777), ("etc", 0o755), ("proc", 0o755), ("sys", 0o755), ("dev", 0o755)):
        entry = tarfile.TarInfo(folder)
        entry.type, entry.mode = tarfile.DIRTYPE, mode
        tar.addfile(entry)
    add(tar, "etc/passwd", b"root:x:0:0:root:/:/bin/sh\ncsi:x:65532:65532:csi:/:/bin/sh\n")
    add(tar, "bin/sh", busybox.read_bytes(), mode=0o755)
    for applet in subprocess.check_output([busybox, "--list"], text=True).split():
        link = tarfile.TarInfo(f"busybox/{applet}")
        link.type, link.linkname = tarfile.SYMTYPE, "/bin/sh"
        tar.addfile(link)
    for name, program in programs.items():
        tar.add(program, name)
    for place, file in sorted({**{it: it for it in files}, **ours}.items()):
        tar.add(file, str(place).lstrip("/"), recursive=False)
    add(tar, f"{str(OPT)[1:]}/pyvenv.cfg", f"home = {Path(sys.executable).resolve().parent}\n".encode())
    link = tarfile.TarInfo(f"{str(OPT)[1:]}/bin/python")
    link.type, link.linkname = tarfile.SYMTYPE, str(Path(sys.executable).resolve())
    tar.addfile(link)
    for name in ("csi-bridge", "dirdriver"):
        script = (BIN / name).read_text().replace(str(BIN), f"{OPT}/bin")
        add(tar, f"{str(OPT)[1:]}/bin/{name}", script.encode(), mode=0o755)


def _inside(file: Path) -> Path:
    return OPT / file.relative_to(BIN.parent)


def _which(name: str) -> str | None:
    places = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
    return next((f"{it}/{name}" for it in places if Path(it, name).exists()), None)


def _standard_library() -> Iterator[Path]:
    for key in ("stdlib", "platstdlib"):
        top = Path(sysconfig.get_path(key, vars={"base": sys.base_prefix, "platbase": sys.base_prefix}))
        for each in top.iterdir():
            if each.name in _UNNEEDED or each.name.startswith("config-"):
                continue
            yield from (it for it in ([each] if each.is_file() else each.rglob("*")) if it.is_file())


def _packages() -> Iterator[Path]:
    """The files of what the project's images have installed, and of what that needs."""
    todo, seen = ["csi-bridge[cloud,edge,demo]"], set()
    while todo:
        wanted = Requirement(todo.pop())
        name = re.sub(r"[-_.]+", "-", wanted.name).lower()
        if (name, frozenset(wanted.extras)) in seen:
            continue
        seen.add((name, frozenset(wanted.extras)))
        found = importlib.metadata.distribution(name)
        files = (Path(os.path.normpath(str(found.locate_file(it)))) for it in found.files or ())
        yield from (it for it in files if it.is_file())
        for text in found.requires or ():
            other = Requirement(text)
            if other.marker is None or any(other.marker.evaluate({"extra": it}) for it in (wanted.extras or {""})):
                todo.append(text)


def _libraries(programs: Iterable[Path]) -> Iterator[Path]:
    done = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=False)
    yield from map(Path, set(re.findall(r"(/\S+) \(0x", done.stdout)))
