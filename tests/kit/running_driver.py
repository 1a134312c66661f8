"""A running test driver and its client, and what the tests need of the machine."""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from common.csi import csi_pb2 as pb
from common.csi.methods import METHODS
from tests.kit.processes import Process, ProcessDiedError
from tests.kit.testdriver.call_log import Call, read_calls

MIB = 1024 * 1024

_BY_NAME = {path.rpartition("/")[2]: method for path, method in METHODS.items()}


def mount() -> pb.VolumeCapability:
    return pb.VolumeCapability(mount={}, access_mode={"mode": "SINGLE_NODE_WRITER"})


def block() -> pb.VolumeCapability:
    return pb.VolumeCapability(block={}, access_mode={"mode": "SINGLE_NODE_WRITER"})


def size(required: int) -> pb.CapacityRange:
    return pb.CapacityRange(required_bytes=required)


@contextlib.contextmanager
def refused(code: str, text: str = "") -> Iterator[None]:
    """The body's call ends with this code, and with this in its message."""
    with pytest.raises(grpc.RpcError) as failure:
        yield
    told = failure.value.details() or ""
    assert (failure.value.code().name, text in told) == (code, True), told


class Running:
    """A process of the test driver, or of the example driver, on a state directory, and a client of its socket."""

    def __init__(
        self, root: Path, *flags: str, node: str = "n1", state: Path | None = None, example: bool = False
    ) -> None:
        self.node = node
        # Its state directory; in `root`, as its socket and its log, unless told otherwise.
        self.state = state or root / "state"
        self.socket = root / f"{node}.sock"  # where it listens
        self._call_log = root / f"{node}.calls"
        command = [
            *(sys.executable, "-m", "examples.dirdriver.main" if example else "tests.kit.testdriver.main"),
            *("--verbose", f"--endpoint=unix://{self.socket}", f"--state-dir={self.state}", f"--node-id={node}"),
            *(() if example else (f"--call-log={self._call_log}",)),
            *flags,
        ]
        self.process = Process("the driver", command, log=root / f"{node}.log")
        self._channel: grpc.Channel | None = None

    def start(self) -> "Running":
        before = len(self.process.output())
        self.process.start()
        options = [("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1)]
        self._channel = grpc.insecure_channel(f"unix:{self.socket}", options=options)
        # The line first: on a socket that another process has, that one would answer.
        self.process.wait_until(lambda: "listens on" in self.process.output()[before:] and self._answers())
        return self

    def _answers(self) -> bool:
        try:
            return bool(self.call("Probe", timeout=1, wait_for_ready=True).ready.value)
        except grpc.RpcError:
            return False

    def call(self, method: str, *, timeout: float = 60.0, wait_for_ready: bool = False, **fields: Any) -> Any:
        assert self._channel is not None
        known = _BY_NAME[method]
        send = self._channel.unary_unary(known.path, known.request.SerializeToString, known.response.FromString)
        return send(known.request(**fields), timeout=timeout, wait_for_ready=wait_for_ready)

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
        return [call for call in read_calls(self._call_log) if call.method == method]

    def set_faults(self, *faults: str) -> None:
        new = self.state / "faults.new"
        new.write_text("\n".join(faults))
        new.rename(self.state / "faults")

    def kill(self) -> None:
        self.process.kill()
        self._close()

    def stop(self) -> None:
        self.process.stop()
        self._close()

    def _close(self) -> None:
        if self._channel is not None:
            self._channel.close()


def ended(driver: Running) -> str:
    """The log of a driver that refuses to start, with exit code 2."""
    with pytest.raises(ProcessDiedError):
        driver.start()
    driver.stop()
    assert driver.process.exit_status == 2, driver.process.output()
    return driver.process.output()


def write(path: Path, text: str) -> None:
    """Write a file and bring it to the disk."""
    with path.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
