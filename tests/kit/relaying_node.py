"""An edge node with a kubelet whose drivers' calls go through the agent, with stand-ins for the kubelet and the guest.

with RelayingNode(short_dir, tmp_path) as node:
    node.start()
    node.make("data")                 # a volume that asks to be direct, its claim, and a pod of the runtime
    node.mount("data")                # as a kubelet does
    with node.guest("data") as volume:
        (volume / "file").write_text("hello")
    node.unmount("data")
"""

import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common.csi import csi_pb2 as csi
from common.csi.volume_context import DIRECT_VOLUME
from common.status import Code
from edge.disk.layout import Layout
from tests.kit.deferring_node import DeferringNode
from tests.kit.edge_node import DRIVER, Object, pod, volume
from tests.kit.guest import Guest
from tests.kit.sidecar import Outcome, Sidecar
from tests.kit.waiting import wait_for

_AGAIN_LIMIT_S = 60.0
_MODE = csi.VolumeCapability.AccessMode(mode="SINGLE_NODE_WRITER")


class RelayingNode(DeferringNode):
    """The node; a context manager."""

    def __init__(self, directory: Path, logs: Path, *, reboots: bool = False) -> None:
        super().__init__(directory, logs, reboots=reboots)
        self.layout = Layout(self.root)
        self.relay = directory / "relay" / f"{DRIVER}.sock"
        self.state_dir = directory / "n1" / "direct"  # the agent's files for direct volumes
        self.deaths = 0  # of the agent, that `again` has seen

    @property
    def direct_flags(self) -> tuple[str, ...]:
        runtimes = ("--direct-runtime=kata=go:3.20", "--direct-runtime=kata-rs=rs:4.1")
        mode = ("--registration=observe", f"--relay-dir={self.relay.parent}")
        return (*runtimes, f"--direct-run-dir={self.run_dir}", *mode)

    def allow(self, *, allowed: bool = True) -> None:
        """Do nothing: the volumes themselves ask, and allow it."""

    def wait_told(self) -> None:
        """Wait until a kubelet's call reaches the driver."""
        wait_for(lambda: self.call("Probe").ok, what="the relay", timeout_s=_AGAIN_LIMIT_S, instead=self.tell)

    # ---- objects -----------------------------------------------------------------------------------------------------

    def make(self, name: str, **spec: Any) -> None:
        """Make a volume that asks, and a pod that wants it."""
        self.handles[name] = self.make_volume(name, size_bytes=32 << 20, block=True)
        self.put(name, **spec)

    def put(self, name: str, *, pod_name: str = "", phase: str = "Running", **spec: Any) -> None:
        self.write(*self.objects(name, **spec.pop("volume", {})), self.pod(pod_name or name, name, phase=phase, **spec),
                   file=name)  # fmt: skip

    def objects(self, name: str, **spec: Any) -> list[Object]:
        return volume(name, self.handles[name], source={"volumeAttributes": {DIRECT_VOLUME: "true"}}, **spec)

    def pod(self, name: str, claim: str, *, phase: str = "Running", **spec: Any) -> Object:
        found = pod(name, claim, **{"runtimeClassName": "kata", **spec})
        found["metadata"]["uid"] = uid_of(name)
        return found | {"status": {"phase": phase}}

    # ---- the kubelet -------------------------------------------------------------------------------------------------

    def call(self, method: str, request: Any = None, *, timeout_s: float = 30.0) -> Outcome:
        with Sidecar(self.relay) as sidecar:
            return sidecar.call(method, request, timeout_s=timeout_s)

    def staging(self, name: str) -> Path:
        return self.layout.staging_target(DRIVER, self.handles[name])

    def target(self, pod_name: str, name: str = "") -> Path:
        return self.layout.target(uid_of(pod_name), f"pv-{name or pod_name}")

    def stage(self, name: str) -> Outcome:
        self.staging(name).mkdir(parents=True, exist_ok=True)
        request = csi.NodeStageVolumeRequest(
            volume_id=self.handles[name],
            staging_target_path=str(self.staging(name)),
            volume_capability=csi.VolumeCapability(mount={}, access_mode=_MODE),
            volume_context={DIRECT_VOLUME: "true"},
        )
        return self.call("NodeStageVolume", request)

    def publish(self, name: str, *, pod_name: str = "", timeout_s: float = 30.0) -> Outcome:
        target = self.target(pod_name or name, name)
        target.parent.mkdir(parents=True, exist_ok=True)
        (target.parent / "vol_data.json").write_text("{}")
        request = csi.NodePublishVolumeRequest(
            volume_id=self.handles[name],
            staging_target_path=str(self.staging(name)),
            target_path=str(target),
            volume_capability=csi.VolumeCapability(mount={}, access_mode=_MODE),
            volume_context={DIRECT_VOLUME: "true"},
        )
        outcome = self.call("NodePublishVolume", request, timeout_s=timeout_s)
        if outcome.code is Code.FAILED_PRECONDITION:  # a final code
            self._remove(target)
        return outcome

    @staticmethod
    def _remove(target: Path) -> None:
        (target.parent / "vol_data.json").unlink(missing_ok=True)
        for folder in (target.parent, *list(target.parents)[1:4]):
            with contextlib.suppress(FileNotFoundError):
                folder.rmdir()

    def unpublish(self, name: str, *, pod_name: str = "") -> Outcome:
        target = self.target(pod_name or name, name)
        request = csi.NodeUnpublishVolumeRequest(volume_id=self.handles[name], target_path=str(target))
        outcome = self.call("NodeUnpublishVolume", request)
        if outcome.ok:
            assert not target.exists(), "the kubelet finds a target that the driver has left"
            self._remove(target)
        return outcome

    def unstage(self, name: str) -> Outcome:
        request = csi.NodeUnstageVolumeRequest(
            volume_id=self.handles[name], staging_target_path=str(self.staging(name))
        )
        outcome = self.call("NodeUnstageVolume", request)
        if outcome.ok:
            with contextlib.suppress(FileNotFoundError):
                for folder in (self.staging(name), self.staging(name).parent):
                    folder.rmdir()
        return outcome

    def stats(self, name: str) -> Outcome:
        request = csi.NodeGetVolumeStatsRequest(volume_id=self.handles[name], volume_path=str(self.target(name)))
        return self.call("NodeGetVolumeStats", request)

    def expand(self, name: str, size_bytes: int, **secrets: str) -> Outcome:
        request = csi.NodeExpandVolumeRequest(
            volume_id=self.handles[name],
            volume_path=str(self.target(name)),
            staging_target_path=str(self.staging(name)),
            capacity_range={"required_bytes": size_bytes},
            secrets=secrets,
            volume_capability=csi.VolumeCapability(mount={}, access_mode=_MODE),
        )
        return self.call("NodeExpandVolume", request)

    def again(self, call: Callable[[], Outcome]) -> Outcome:
        """Call until the answer is OK, as a kubelet does, and start an agent that has died meanwhile."""

        def look() -> Outcome | None:
            if not self.agent.process.running:
                self.deaths += 1
                self.restart_agent()
            outcome = call()
            return outcome if outcome.ok else None

        return wait_for(look, what="OK", timeout_s=_AGAIN_LIMIT_S, instead=lambda: f"{call()}\n{self.tell()}")

    def mount(self, name: str, *, pod_name: str = "") -> Path:
        self.again(lambda: self.stage(name))
        self.again(lambda: self.publish(name, pod_name=pod_name))
        return self.target(pod_name or name, name)

    def unmount(self, name: str, *, pod_name: str = "") -> None:
        self.again(lambda: self.unpublish(name, pod_name=pod_name))
        self.again(lambda: self.unstage(name))
        assert self.left_over() == [], self.tell()

    # ---- state -------------------------------------------------------------------------------------------------------

    def guest(self, pod_name: str, name: str = "") -> Guest:
        inside = self.machine.inside if self.machine is not None else None
        return Guest(self.run_dir, self.target(pod_name, name), inside=inside)

    def left_over(self) -> list[str]:
        found = [f"mount {path}" for path in self.mounts()] + [f"direct volume {name}" for name in self.told()]
        own = Layout(self.layout.beside_kubelet)
        kept = {own.block_root / each for each in ("staging", "publish")}
        places = [*own.pods.glob("*"), *own.block_root.glob("*"), *own.block_root.glob("*/*"),
                  *self.layout.pods.glob("*")]  # fmt: skip
        found += [str(path.relative_to(self.root)) for path in places if path not in kept]
        return found + [f"loop device of {line}" for line in self._loops()] + self.rows()

    def rows(self) -> list[str]:
        """Return the agent's record of direct volumes, from its database."""
        if not (self.state_dir / "volumes.db").exists():
            return []
        with contextlib.closing(sqlite3.connect(self.state_dir / "volumes.db")) as database:
            devices = database.execute("SELECT 'device', handle, state FROM devices").fetchall()
            return [" ".join(row) for row in devices] + [
                " ".join(row) for row in database.execute("SELECT 'publication', handle, state FROM publications")
            ]


def uid_of(pod_name: str) -> str:
    return f"uid-of-{pod_name}"
