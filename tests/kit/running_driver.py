"""A running test driver and its client, and what the tests need of the machine."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from common.csi import csi_pb2 as pb
from common.csi.methods import METHODS
from tests.kit.testdriver.call_log import Call, read_calls

MIB = 1024 * 1024
Mode = pb.VolumeCapability.AccessMode.Mode

_BY_NAME = {path.rpartition("/")[2]: method for path, method in METHODS.items()}
_START_LIMIT_S = 30.0


def mount(
    mode: Any = Mode.SINGLE_NODE_WRITER, *, fs_type: str = "", flags: tuple[str, ...] = ()
) -> pb.VolumeCapability:
    return pb.VolumeCapability(
        mount=pb.VolumeCapability.MountVolume(fs_type=fs_type, mount_flags=flags),
        access_mode=pb.VolumeCapability.AccessMode(mode=mode),
    )


def block(mode: Any = Mode.SINGLE_NODE_WRITER) -> pb.VolumeCapability:
    return pb.VolumeCapability(
        block=pb.VolumeCapability.BlockVolume(),
        access_mode=pb.VolumeCapability.AccessMode(mode=mode),
    )


def size(required: int, limit: int = 0) -> pb.CapacityRange:
    return pb.CapacityRange(required_bytes=required, limit_bytes=limit)


@contextlib.contextmanager
def refused(code: str, text: str = "") -> Iterator[None]:
    """The body's call ends with this code, and with this in its message."""
    with pytest.raises(grpc.RpcError) as failure:
        yield
    told = failure.value.details() or ""
    assert (failure.value.code().name, text in told) == (code, True), told


class Running:
    """A process of the test driver, or of the example driver, on a state directory, and a client of its socket.

    Attributes:
        root: the directory of its socket, log and, unless told otherwise, its state.
        state: its state directory.
        socket: where it listens.
    """

    def __init__(
        self,
        root: Path,
        *flags: str,
        node: str = "n1",
        state: Path | None = None,
        without_root: bool = False,
        example: bool = False,
    ) -> None:
        self._example = example
        self.root, self.node, self.flags = root, node, flags
        self._prefix = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-all"] if without_root else []
        self.state = state or root / "state"
        self.socket = root / f"{node}.sock"
        self.call_log = root / f"{node}.calls"
        self._log = root / f"{node}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: grpc.Channel | None = None

    def start(self, *more: str) -> "Running":
        module = "examples.dirdriver.main" if self._example else "tests.kit.testdriver.main"
        command = [
            *self._prefix,
            *(sys.executable, "-m", module, "--verbose"),
            *("--endpoint", f"unix://{self.socket}", "--state-dir", str(self.state), "--node-id", self.node),
            *(() if self._example else ("--call-log", str(self.call_log))),
            *(*self.flags, *more),
        ]
        with self._log.open("ab") as log:
            before = log.tell()
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        options = [("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1)]
        self._channel = grpc.insecure_channel(f"unix:{self.socket}", options=options)
        deadline = time.monotonic() + _START_LIMIT_S
        # The line first: on a socket that another process has, that one would answer.
        while "listens on" not in self.log[before:] or not self._answers():
            assert self._process.poll() is None, f"the driver ended:\n{self.log}"
            assert time.monotonic() < deadline, f"the driver does not answer:\n{self.log}"
            time.sleep(0.02)
        return self

    def _answers(self) -> bool:
        try:
            return bool(self.call("Probe", timeout=1, wait_for_ready=True).ready.value)
        except grpc.RpcError:
            return False

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        return self._log.read_text()

    def call(self, method: str, *, timeout: float = 60.0, wait_for_ready: bool = False, **fields: Any) -> Any:
        future = self.begin(method, timeout=timeout, wait_for_ready=wait_for_ready, **fields)
        return list(future) if _BY_NAME[method].streaming else future.result()

    def begin(self, method: str, *, timeout: float = 60.0, wait_for_ready: bool = False, **fields: Any) -> Any:
        """Begin a call: a future, or for a stream an iterator."""
        assert self._channel is not None
        known = _BY_NAME[method]
        codec = known.request.SerializeToString, known.response.FromString
        request = known.request(**fields)
        options: dict[str, Any] = {"timeout": timeout, "wait_for_ready": wait_for_ready}
        if known.streaming:
            return self._channel.unary_stream(known.path, *codec)(request, **options)
        return self._channel.unary_unary(known.path, *codec).future(request, **options)

    def create(self, name: str, *capabilities: pb.VolumeCapability, **fields: Any) -> pb.Volume:
        """A volume; a directory of 1 MiB unless told otherwise."""
        wanted = {"volume_capabilities": capabilities or [mount()], "capacity_range": size(MIB)} | fields
        volume: pb.Volume = self.call("CreateVolume", name=name, **wanted).volume
        return volume

    def attached(self, name: str, *capabilities: pb.VolumeCapability, **fields: Any) -> pb.Volume:
        volume = self.create(name, *capabilities, **fields)
        self.call(
            "ControllerPublishVolume",
            volume_id=volume.volume_id,
            node_id=self.node,
            volume_capability=(capabilities or [mount()])[0],
        )
        return volume

    def stage(self, volume: pb.Volume, path: Path, capability: pb.VolumeCapability | None = None) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self.call(
            "NodeStageVolume",
            volume_id=volume.volume_id,
            staging_target_path=str(path),
            volume_capability=capability or mount(),
        )

    def publish(
        self,
        volume: pb.Volume,
        staged: Path | None,
        target: Path,
        capability: pb.VolumeCapability | None = None,
        **fields: Any,
    ) -> None:
        self.call(
            "NodePublishVolume",
            volume_id=volume.volume_id,
            staging_target_path=str(staged or ""),
            target_path=str(target),
            volume_capability=capability or mount(),
            **fields,
        )

    def unpublish(self, volume: pb.Volume, target: Path) -> None:
        self.call("NodeUnpublishVolume", volume_id=volume.volume_id, target_path=str(target))

    def unstage(self, volume: pb.Volume, path: Path) -> None:
        self.call("NodeUnstageVolume", volume_id=volume.volume_id, staging_target_path=str(path))

    def discard(self, volume: pb.Volume) -> None:
        self.call("ControllerUnpublishVolume", volume_id=volume.volume_id)
        self.call("DeleteVolume", volume_id=volume.volume_id)

    def volumes(self) -> list[str]:
        return [entry.volume.volume_id for entry in self.call("ListVolumes").entries]

    def on_disk(self, kind: str = "volumes") -> list[str]:
        """The ids whose data is in the state directory."""
        return sorted(path.name for path in (self.state / kind).iterdir())

    def calls(self, method: str) -> list[Call]:
        return [call for call in read_calls(self.call_log) if call.method == method]

    def set_faults(self, *faults: str) -> None:
        new = self.state / "faults.new"
        new.write_text("\n".join(faults))
        new.rename(self.state / "faults")

    def wait_until_dead(self) -> int:
        assert self._process is not None
        code = self._process.wait(timeout=30)
        self._close()
        return code

    def kill(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self.wait_until_dead()

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        if self._process is None:
            return 0
        self._process.terminate()
        return self.wait_until_dead()

    def _close(self) -> None:
        if self._channel is not None:
            self._channel.close()
        self._process = self._channel = None


def ended(driver: Running) -> str:
    """The log of a driver that refuses to start, with exit code 2."""
    try:
        driver.start()
    except AssertionError:
        assert driver.wait_until_dead() == 2, driver.log
        return driver.log
    driver.stop()
    raise AssertionError("the driver started")


def write(path: Path, text: str) -> None:
    """Write a file and bring it to the disk."""
    with path.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
