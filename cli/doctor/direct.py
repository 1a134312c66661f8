"""Direct volumes: checks the runtimes that mount them, the tools, Kata's directory, and the sandboxes that use them."""

import asyncio
import os
import re
import shutil
import stat
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path

from cli.doctor.finding import Check, Finding, known, listed, ok, warning, wrong
from edge.direct.errors import DirectVolumeError, MountInfoBroken
from edge.direct.shim_client import ShimClient
from edge.direct.store import DirectVolumeStore
from edge.runtimes import DirectRuntime

SHIM = "containerd-shim-kata-v2"
"""The program that a container engine starts for each sandbox of Kata."""

_KATAS_OWN = ("/opt/kata/bin", "/opt/kata/runtime-rs/bin")
"""Where kata-deploy installs the Go runtime and runtime-rs."""

_ANSWER = re.compile(r"containerd shim \((?P<kind>Golang|Rust)\).*?version: (?P<version>[^,\s]+)")

_FLAVOURS = {"Golang": "go", "Rust": "rs"}
_NAMES = {"go": "Kata's Go runtime", "rs": "runtime-rs", "?": f"a {SHIM} of unknown version"}

_TOOLS = {"ext4": ("blkid", "mkfs.ext4", "e2fsck", "resize2fs"), "xfs": ("blkid", "mkfs.xfs")}
"""The programs that the agent runs for a file system (`edge.direct.file_systems`)."""


def direct_checks(runtimes: Sequence[DirectRuntime], run_dir: Path) -> list[Check]:
    """The checks of a node whose agent hands devices to these runtimes."""
    store, shim = DirectVolumeStore.below(run_dir), ShimClient.below(run_dir)
    folders = [*_KATAS_OWN, *os.get_exec_path()]
    return [
        Check("runtime", lambda: check_runtime(runtimes, [Path(folder) for folder in dict.fromkeys(folders)])),
        known("tools", check_tools({kind for runtime in runtimes for kind in runtime.fs_types})),
        Check("direct volumes", lambda: asyncio.to_thread(check_store, store)),
        Check("sandboxes", lambda: asyncio.to_thread(check_sandboxes, store, shim)),
    ]


async def check_runtime(runtimes: Sequence[DirectRuntime], folders: Sequence[Path]) -> Finding:
    """Whether the runtimes that --direct-runtime names are installed in these directories."""
    programs = [path for folder in folders if os.access(path := folder / SHIM, os.X_OK)]
    if not programs:
        do = (
            f"install Kata Containers; do nothing if the engine's configuration names {SHIM} by another path, or if "
            "this is a container that does not see the host's programs"
        )
        return warning(f"no {SHIM} is in {listed([str(folder) for folder in folders])}", do)
    found = [await _version(path) for path in programs]
    shown = listed([f"{_NAMES[flavour]} {version}".rstrip() + f" is at {path}" for path, flavour, version in found])
    installed = {flavour for _, flavour, _ in found}
    missing = [runtime for runtime in runtimes if runtime.flavour not in installed]
    if missing and "?" not in installed:
        what = f"no {_NAMES[missing[0].flavour]} is installed, and --direct-runtime={missing[0]} names one: {shown}"
        return warning(what, "correct the flag, or install that runtime")
    return ok(shown)


def check_tools(fs_types: Collection[str], which: Callable[[str], object] = shutil.which) -> Finding:
    """Whether the programs are installed that make and grow these file systems."""
    needed = sorted({tool for kind in fs_types for tool in _TOOLS[kind]})
    missing = [tool for tool in needed if not which(tool)]
    if missing:
        do = "install them (util-linux, e2fsprogs, xfsprogs), or name other file systems in --direct-runtime"
        return wrong(f"these programs are missing: {listed(missing)}", do)
    return ok(f"{listed(needed, most=len(needed))} are installed")


def check_store(store: DirectVolumeStore) -> Finding:
    """Whether Kata's directory is closed to others, and whether the runtimes can read all in it."""
    try:
        mode = stat.S_IMODE(store.root.stat().st_mode)
    except FileNotFoundError:
        return ok(f"{store.root} is made with the first direct volume")
    except OSError as error:
        return wrong(f"{store.root} cannot be used: {error.strerror or error}", "run the doctor as root")
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        what = f"other users of this host may write {store.root} (mode {mode:04o}), and so give a guest any device"
        return wrong(what, f"chmod 0700 {store.root}")
    try:
        paths = store.volume_paths()
        broken = [path for path in paths if not _is_whole(store, path)]
    except DirectVolumeError as error:
        return wrong(str(error), "run the doctor as root")
    if broken:
        what = f"no runtime can mount these direct volumes, because their mountInfo.json is broken: {listed(broken)}"
        return wrong(what, "remove those that no pod needs: kata-runtime direct-volume remove --volume-path PATH")
    return ok(f"{store.root} has {len(paths)} direct volumes")


def check_sandboxes(store: DirectVolumeStore, shim: ShimClient) -> Finding:
    """Whether the sandboxes that use direct volumes run."""
    try:
        used = {path: store.sandbox_ids(path) for path in store.volume_paths()}
    except DirectVolumeError as error:
        return wrong(str(error), "run the doctor as root")
    dead = [path for path, ids in used.items() if ids and not any(map(shim.is_live, ids))]
    if dead:
        what = f"nobody answers for the sandboxes of these direct volumes: {listed(dead)}"
        return warning(what, "see whether their pods run (crictl pods)")
    live = sum(bool(ids) for ids in used.values())
    return ok(f"{live} direct volumes are in use by a running sandbox that is known")


def _is_whole(store: DirectVolumeStore, path: str) -> bool:
    try:
        return store.get(path) is not None
    except MountInfoBroken:
        return False


async def _version(path: Path) -> tuple[Path, str, str]:
    """The runtime's flavour and version, from the program itself; `?` and nothing if it does not tell."""
    asked = await asyncio.create_subprocess_exec(path, "--version", stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL)
    try:
        answer, _ = await asked.communicate()
    finally:
        with suppress(ProcessLookupError):
            asked.kill()
    found = _ANSWER.search(answer.decode(errors="replace"))
    return (path, _FLAVOURS[found["kind"]], found["version"]) if found else (path, "?", "")
