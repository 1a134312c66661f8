"""A process that cannot start closes all that it has opened: another may start at once in its place."""

import asyncio
import gc
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.process_options import DRIVER_OPTIONS, EDGE_OPTIONS, HUB_OPTIONS
from cloud import csi_proxy_driver, hub_process
from cloud.records.sqlite import SqliteRecords
from common.errors import SettingsError
from edge import agent


@pytest.fixture
def taken() -> Iterator[str]:
    """An address where somebody else listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
        yield f"{host}:{port}"


def opened(directory: Path) -> set[str]:
    """What this process has open: files in a directory, threads, and how many sockets."""
    gc.collect()  # sockets of earlier tests
    targets = [link.readlink() for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    files = {str(target) for target in targets if target.is_relative_to(directory)}
    sockets = sum(str(target).startswith("socket:") for target in targets)
    threads = {it.name for it in threading.enumerate() if not it.name.startswith("asyncio_")}  # the loop's own pool
    return files | threads | {f"{sockets} sockets"}


@pytest.mark.parametrize("what", ["listen", "uds", "http", "manifests", "serve"])
async def test_a_hub_that_cannot_start_leaves_nothing_open(short_dir: Path, taken: str, what: str) -> None:
    await asyncio.to_thread(str)  # the loop's own sockets are there
    before = opened(short_dir)
    flags = {
        "state_dir": str(short_dir / "state"),
        "uds": f"unix://{short_dir}/hub.sock",
        "listen": "127.0.0.1:0",
        "insecure": "true",
        "http": "127.0.0.1:0",
    }
    wrong = {"uds": f"unix://{short_dir}/none/hub.sock", "manifests": "kubeconfig"}
    wrong |= {"serve": f"d.example=unix://{short_dir}/none/csi.sock"}
    flags |= {"kubeconfig": "/nowhere"} if what == "manifests" else {what: wrong.get(what, taken)}
    with pytest.raises(SettingsError, match="kubeconfig" if what == "manifests" else f"--{what}"):
        await hub_process.run(HUB_OPTIONS.read(flags), asyncio.Event())
    assert opened(short_dir) - before == set()
    await SqliteRecords(short_dir / "state").close()  # whose lock is free


@pytest.mark.parametrize("what", ["endpoint", "http"])
async def test_a_proxy_driver_that_cannot_start_leaves_nothing_open(short_dir: Path, taken: str, what: str) -> None:
    await asyncio.to_thread(str)
    before = opened(short_dir)
    flags = {
        "drivername": "d.example",
        "state_dir": str(short_dir / "state"),
        "endpoint": f"unix://{short_dir}/csi.sock",
        "http": "127.0.0.1:0",
    }
    flags |= {what: f"unix://{short_dir}/none/csi.sock" if what == "endpoint" else taken}
    with pytest.raises(SettingsError):
        await csi_proxy_driver.run(DRIVER_OPTIONS.read(flags), asyncio.Event())
    assert opened(short_dir) - before == set()


@pytest.mark.parametrize("what", ["status", "http"])
async def test_an_agent_that_cannot_start_leaves_nothing_open(short_dir: Path, taken: str, what: str) -> None:
    await asyncio.to_thread(str)
    before, kubelets = opened(short_dir), short_dir / "root"
    flags = {
        "node": "n1",
        "hub": "ws://127.0.0.1:1",
        "insecure": "true",
        "state_dir": str(short_dir / "state"),
        "root_dir": str(kubelets),
        "status": f"unix://{short_dir}/edge.sock",
        "http": "127.0.0.1:0",
    }
    flags |= {what: f"unix://{short_dir}/none/none/edge.sock" if what == "status" else taken}
    with pytest.raises(SettingsError):
        await agent.run(EDGE_OPTIONS.read(flags), asyncio.Event())
    assert opened(short_dir) - before == set()
    assert not kubelets.exists()


@pytest.mark.parametrize("files", [20_000, 4_096])
async def test_a_hub_warns_of_too_few_open_files_but_not_at_its_defaults_on_an_ordinary_machine(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, files: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _what: (files, files))
    flags = {"state_dir": str(short_dir / "state"), "uds": f"unix://{short_dir}/hub.sock"}
    stopping = asyncio.Event()
    stopping.set()
    await hub_process.run(HUB_OPTIONS.read(flags), stopping)
    lacking = "the system allows 4096 open files (ulimit -Hn, LimitNOFILE), and all connections may need 18304: "
    said = [it for it in caplog.messages if "open files" in it]
    assert [it[: len(lacking)] for it in said] == ([lacking] if files == 4_096 else [])


def test_a_hub_without_a_cluster_needs_no_client_of_kubernetes() -> None:
    """It is in the extra [cloud], and takes 27 MB."""
    code = "import sys, cloud.hub_process; print([it for it in ('aiohttp', 'kubernetes') if it in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"
