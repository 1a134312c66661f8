"""An edge node whose pods' runtime mounts volumes in its guest, with a stand-in for the guest.

with DeferringNode(short_dir, tmp_path) as node:
    node.start()
    node.add("data")                  # a volume, its claim, and a pod that asks to defer it
    with node.guest("data") as volume:
        (volume / "file").write_text("hello")
"""

import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from common.csi import csi_pb2 as csi
from tests.kit.cdi_rules import devices_in
from tests.kit.edge_node import EdgeNode, Object, csi_driver, pod, volume
from tests.kit.guest import STORE, Guest
from tests.kit.operator import by_hand
from tests.kit.sidecar import Sidecar

ANNOTATION = "csi-bridge.io/direct-volumes"


class DeferringNode(EdgeNode):
    """The node; a context manager.

    Attributes:
        run_dir: the runtime's `/run`.
        cdi_dir: the container engines' directory for generated files.
    """

    def __init__(self, directory: Path, logs: Path, *, reboots: bool = False) -> None:
        super().__init__(directory, logs, reboots=reboots)
        self.run_dir, self.cdi_dir = directory / "run", directory / "cdi"
        self.handles: dict[str, str] = {}

    @property
    def direct_flags(self) -> tuple[str, ...]:
        """The agent's flags for deferral."""
        runtimes = ("--direct-runtime=kata=go:3.20", "--direct-runtime=kata-rs=rs:4.1")
        return (*runtimes, f"--direct-run-dir={self.run_dir}", f"--cdi-dir={self.cdi_dir}")

    def wipe_mounts(self) -> None:
        """Unmount everything, and detach the loop devices of volumes that the test has left published."""
        for device in self._loop_devices():  # first: nobody finds a holder whose file is unmounted
            subprocess.run(["losetup", "--detach", device], check=False)
        super().wipe_mounts()

    def start(self, *flags: str, driver_flags: Iterable[str] = ("--no-attach",), hub_flags: Iterable[str] = ()) -> None:
        super().start(*self.direct_flags, *flags, driver_flags=driver_flags, hub_flags=hub_flags)
        self.allow()

    def allow(self, *, allowed: bool = True) -> None:
        """Let the vendor's driver be deferred."""
        driver = csi_driver(fsGroupPolicy="File")
        if allowed:
            driver["metadata"]["annotations"] = {ANNOTATION: "true"}
        self.write(driver, file="driver")

    def add(self, name: str, **spec: Any) -> Path:
        """Make a volume and a pod that asks for it to be deferred; wait until it is, and return the pod's path."""
        self.handles[name] = self.make_volume(name, size_bytes=32 << 20, block=True)
        self.put(name, **spec)
        return self.wait_published(name)[0]

    def put(self, name: str, *, pod_name: str = "", phase: str = "Running", **spec: Any) -> None:
        """Write the objects of a volume and its pod, in this phase."""
        objects = volume(name, self.handles[name])
        self.write(*objects, asking(pod_name or name, name, phase=phase, **spec), file=name)

    def grow(self, name: str, size_bytes: int) -> None:
        """Let the vendor's controller grow a volume, as a resizer does."""
        wanted = csi.ControllerExpandVolumeRequest(
            volume_id=self.handles[name], capacity_range={"required_bytes": size_bytes}
        )
        with Sidecar(self.driver.socket) as sidecar:
            outcome = sidecar.call("ControllerExpandVolume", wanted)
        assert outcome.ok, outcome.refusal

    def end(self, name: str, *, pod_name: str = "") -> None:
        """End the pod, and wait until nothing is left."""
        self.put(name, pod_name=pod_name, phase="Succeeded")
        self.wait_clean()

    def target(self, pod_name: str) -> Path:
        """Return the path of a pod's one volume."""
        (found,) = self.volumes(pod_name)
        return Path(found["path"])

    def guest(self, pod_name: str) -> Guest:
        """Return a guest with the volume of a pod."""
        return Guest(self.run_dir, self.target(pod_name), inside=self.machine.inside if self.machine else None)

    def image(self, name: str) -> Path:
        """Return the file that is the data of a volume."""
        return self.driver.state / "volumes" / self.handles[name] / "image"

    def told(self) -> list[str]:
        """Return the names of all entries in the runtime's directory."""
        return sorted(path.name for path in (self.run_dir / STORE).glob("*"))

    def left_over(self) -> list[str]:
        found = [f"direct volume {name}" for name in self.told()]
        return [*super().left_over(), *found, *(f"CDI file {path.name}" for path in self.cdi_files())]

    def cdi_files(self) -> list[Path]:
        """Return all files for container engines."""
        return sorted(self.cdi_dir.glob("*"))

    def cdi_edits(self, pod_name: str) -> list[dict[str, Any]]:
        """Return what an engine does for each container of a pod with one volume, by the names that the agent tells."""
        (found,) = self.volumes(pod_name)
        known = {name: edits for path in self.cdi_files() for name, edits in devices_in(path.read_bytes()).items()}
        return [known[device["name"]] for device in found["devices"]]

    def events(self) -> str:
        """Return all facts that the hub has from the node, with its events."""
        return by_hand("facts", f"--hub=unix://{self.bridge.hub.uds}").stdout

    def host_mounts(self) -> list[str]:
        """Return the devices of this node's volumes that this machine has mounted with their file system."""
        devices = subprocess.run(["losetup", "--list", "--noheadings", "--output=NAME,BACK-FILE"], check=True,
                                 capture_output=True, text=True).stdout.splitlines()  # fmt: skip
        ours = {line.split()[0] for line in devices if str(self.directory) in line}
        table = [line.split(" - ")[1].split(" ") for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        return [source for kind, source, *_ in table if kind == "ext4" and source in ours]


def asking(name: str, *claims: str, phase: str = "Running", **spec: Any) -> Object:
    """Return a pod of the runtime that asks to defer its volumes."""
    found = pod(name, *claims, **{"runtimeClassName": "kata", **spec})
    found["metadata"]["annotations"] = {ANNOTATION: ",".join(f"v-{it}" for it in claims)}
    return found | {"status": {"phase": phase}}
