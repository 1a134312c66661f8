"""The story: one volume's life through the bridge, with a reboot and a cut link in the middle of it."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

import click
import grpc
from google.protobuf.json_format import ParseDict

from common.csi.methods import METHODS
from common.errors import BridgeError
from edge.disk.mounts import read_table

_LIMIT_S = 30.0  # of a step: far longer than any takes, so that the demo fails instead of hanging

_COMMANDS = {
    "example driver": """examples.dirdriver.main --drivername=dirdriver.csi --node-id=edge-1
        --endpoint=unix://{at}/edge-csi.sock --state-dir={at}/storage""",
    "hub": """cli hub --uds=unix://{at}/hub.sock --listen=127.0.0.1:{hub_port} --insecure --state-dir={at}/hub
        --manifests={at}/manifests""",
    "network": "cli.demo.network {agent_port} {hub_port}",
    "agent": """cli edge run --node=edge-1 --hub=ws://127.0.0.1:{agent_port} --insecure --state-dir={at}/edge
        --driver=unix://{at}/edge-csi.sock --root-dir={at}/kubelet --status=unix://{at}/edge.sock""",
    "proxy driver": """cli driver --drivername=dirdriver.csi --endpoint=unix://{at}/cloud-csi.sock
        --hub-endpoint=unix://{at}/hub.sock --state-dir={at}/driver""",
}

_CSI_DRIVER = """
{apiVersion: storage.k8s.io/v1, kind: CSIDriver, metadata: {name: dirdriver.csi}, spec: {attachRequired: false}}
"""
_POD = """
{apiVersion: v1, kind: PersistentVolume, metadata: {name: pv-demo}, spec: {
  capacity: {storage: 16Mi}, accessModes: [ReadWriteOnce], storageClassName: "",
  claimRef: {namespace: default, name: demo}, csi: {driver: dirdriver.csi, volumeHandle: VOLUME_ID}}}
---
{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {namespace: default, name: demo}, spec: {
  accessModes: [ReadWriteOnce], storageClassName: "", resources: {requests: {storage: 16Mi}}, volumeName: pv-demo}}
---
{apiVersion: v1, kind: Pod, metadata: {namespace: default, name: web}, spec: {
  nodeName: edge-1, volumes: [{name: data, persistentVolumeClaim: {claimName: demo}}],
  containers: [{name: web, image: none, volumeMounts: [{name: data, mountPath: /data}]}]}}
"""


def run() -> int:
    click.secho("\nCSI Bridge: a vendor's CSI driver, at an edge that the cloud cannot reach", bold=True)
    try:
        with TemporaryDirectory(prefix="csi-bridge-demo-", ignore_cleanup_errors=True) as name:
            _Demo(Path(name)).run()
    except KeyboardInterrupt:
        _say("stopped; everything that was started is gone")
        return 130
    except (BridgeError, OSError) as error:
        click.secho(f"\nThe demo failed: {error}", fg="red", bold=True)
        return 1
    _say("All processes are stopped, and nothing is left behind.\n")
    return 0


class _Demo:
    def __init__(self, directory: Path) -> None:
        self._at = directory
        self._stored = directory / "storage" / "volumes"
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._acts, self._signals = 0, list[object]()
        with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
            self._ports = {"hub_port": one.getsockname()[1], "agent_port": other.getsockname()[1]}

    def run(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # Not an exception: it could come between the start of a process and its entry in the list.
            signal.signal(number, lambda *told: self._signals.append(told))
        try:
            with grpc.insecure_channel(f"unix:{quote(str(self._at))}/cloud-csi.sock") as self._sidecar:
                self._tell()
        finally:
            self._kill(*self._running)
            self._unmount()

    def _tell(self) -> None:
        self._act("Everything starts, in any order")
        (self._at / "manifests").mkdir()
        (self._at / "manifests" / "driver.yaml").write_text(_CSI_DRIVER)
        self._start(*_COMMANDS)
        self._until(lambda: not _refusal(self._call("Controller/GetCapacity")), "all of them find each other")
        info = _answer(self._call("Identity/GetPluginInfo"))
        _say(f"✓ the cloud's socket answers as {info.name} {info.vendor_version}, which runs on edge-1")

        self._act("A sidecar in the cloud calls CreateVolume on its local socket")
        volume = _answer(self._create("pvc-demo-1")).volume.volume_id
        _say(f"✓ the edge has {next(self._stored.iterdir()).relative_to(self._at)}/")

        self._act("A pod of the edge node appears in the hub's manifests, and its volume at the edge")
        if _has_cap_sys_admin():
            self._use(volume)
        else:
            _say("- left out: mounting needs root, and the right to mount")

        self._act("A slow CreateVolume is under way, and the link is cut")
        self._running["example driver"].send_signal(signal.SIGSTOP)
        slow = self._create("pvc-demo-2")
        time.sleep(1.0)
        self._kill("network")
        _say(f"✗ the call ends: {_refusal(slow)}")
        self._running["example driver"].send_signal(signal.SIGCONT)
        self._until(lambda: "is offline since" in _refusal(self._create("pvc-demo-2")), "the sidecar retries")
        _say(f"✗ the retry ends: {_refusal(self._create('pvc-demo-2'))}")

        self._act("The link is back, and the same call joins the work that went on")
        self._start("network")
        self._until(lambda: not _refusal(self._create("pvc-demo-2")), "the agent dials; the sidecar retries")
        second = _answer(self._create("pvc-demo-2")).volume.volume_id
        _say(f"✓ volume {second}: made once, at the edge, while the link was cut")

        self._act("The sidecar deletes both volumes")
        for volume_id in (volume, second):
            _answer(self._call("Controller/DeleteVolume", volume_id=volume_id))
        if left := [path.name for path in self._stored.iterdir()]:
            raise BridgeError(f"the edge still holds {', '.join(left)}")
        _say("✓ dirdriver.csi holds no volume any more\n")

    def _use(self, volume: str) -> None:
        manifest = self._at / "manifests" / "pod.yaml"
        manifest.write_text(_POD.replace("VOLUME_ID", volume))
        self._until(lambda: len(self._mounts()) == 2, "the agent stages and publishes")
        path = self._mounts()[-1]
        (path / "hello").write_text("written at the edge")
        _say(f"✓ published at {path.relative_to(self._at)}")
        _say(f"✓ written, and read back: {(path / 'hello').read_text()!r}")

        self._act("The hub dies, and the edge node reboots: its agent is gone, and so is every mount")
        self._kill("hub", "agent")
        self._unmount()
        _say(f"✗ {len(self._mounts())} mounts, and {len(list(path.iterdir()))} files in the pod's directory")
        self._start("agent")
        self._until(lambda: len(self._mounts()) == 2, "the agent alone stages and publishes")
        _say(f"✓ the data is unharmed: {(path / 'hello').read_text()!r}")

        self._act("The hub is back, and the pod is removed from the manifests")
        manifest.unlink()
        self._start("hub")
        self._until(lambda: not self._mounts(), "the hub tells the agent; the agent unpublishes and unstages")
        _say("✓ unpublished, unstaged, and nothing is left of it but its data")
        self._until(lambda: not _refusal(self._call("Controller/GetCapacity")), "all of them find the hub again")

    def _call(self, rpc: str, **request: Any) -> Any:
        method: Any = METHODS[f"/csi.v1.{rpc}"]
        call = self._sidecar.unary_unary(method.path, method.request.SerializeToString, method.response.FromString)
        return call.future(ParseDict(request, method.request()), timeout=_LIMIT_S)

    def _create(self, volume: str) -> Any:
        capability = {"mount": {}, "access_mode": {"mode": "SINGLE_NODE_WRITER"}}
        return self._call("Controller/CreateVolume", name=volume, volume_capabilities=[capability])

    def _act(self, title: str) -> None:
        self._acts += 1
        click.secho(f"\n{self._acts}. {title}", fg="cyan", bold=True)

    def _until(self, ready: Callable[[], bool], what: str) -> None:
        _say(f"{what} …")
        give_up = time.monotonic() + _LIMIT_S
        while not ready():
            if self._signals:
                raise KeyboardInterrupt
            if ended := [name for name, process in self._running.items() if process.poll() is not None]:
                raise BridgeError(f"the {ended[0]} ended:\n{(self._at / f'{ended[0]}.log').read_text()[-2000:]}")
            if time.monotonic() > give_up:
                raise BridgeError(f"this did not happen within {_LIMIT_S:g} s: {what}")
            time.sleep(0.05)

    def _start(self, *names: str) -> None:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("CSI_BRIDGE_", "DIRDRIVER_"))}
        for name in names:
            words = [word.format(at=self._at, **self._ports) for word in _COMMANDS[name].split()]
            with (self._at / f"{name}.log").open("ab") as log:
                self._running[name] = subprocess.Popen(  # noqa: S603  # our own commands
                    [sys.executable, "-P", "-m", *words], stdout=log, stderr=log, env=kept, start_new_session=True
                )

    def _kill(self, *names: str) -> None:
        for name in names:
            self._running[name].kill()
            self._running.pop(name).wait()

    def _mounts(self) -> list[Path]:
        return [Path(path) for path in read_table(self._at / "kubelet").within(self._at / "kubelet")]

    def _unmount(self) -> None:
        for path in reversed(self._mounts()):
            subprocess.run(["umount", "--lazy", path], check=False, capture_output=True)  # noqa: S603, S607  # the system's


def _refusal(call: Any) -> str:
    error = call.exception()
    return f"{error.code().name}: {error.details()}" if error else ""


def _answer(call: Any) -> Any:
    if refusal := _refusal(call):
        raise BridgeError(f"a call was refused: {refusal}")
    return call.result()


def _has_cap_sys_admin() -> bool:
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return bool(int(status["CapEff"], 16) >> 21 & 1)


def _say(text: str) -> None:
    colour = {"✓": "green", "✗": "yellow"}.get(text[0])
    click.echo(f"   {click.style(text[0], fg=colour)}{text[1:]}")
