"""A hostile hub tells of a node's pods, and the kubelet there asks the agent for volumes that the runtime mounts."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf.message import Message

from common.csi import csi_pb2 as csi
from common.csi.volume_context import DIRECT_VOLUME
from common.status import Code
from edge.disk.layout import Layout
from tests.kit.edge_volumes import attachment, persistent_claim, persistent_volume, pod, secret
from tests.kit.guest import mount_info
from tests.kit.hostile_hub import Attack, attack
from tests.kit.needs import needs_loops
from tests.kit.relaying_node import RelayingNode
from tests.kit.sidecar import Outcome, Sidecar
from tests.kit.waiting import wait_for

_DRIVER = "vendor.test"
_MOUNT = csi.VolumeCapability(mount={}, access_mode={"mode": "SINGLE_NODE_WRITER"})
_OUT = "../../../../../../outside"
_PLACES = re.compile(
    r"/plugins/kubernetes\.io/csi/volumeDevices/(staging/[\w.~-]+|publish/[\w.~-]+/[\w.~-]+)", re.ASCII
)

_OF_KUBELET = {"of": "the kubelet"}
_ASKED = {DIRECT_VOLUME: "true", "csi.storage.k8s.io/serviceAccount.name": "web", **_OF_KUBELET}

_RULES = {"kind": "CSIDriver", "metadata": {"name": _DRIVER}, "spec": {"attachRequired": True, "podInfoOnMount": True}}


@dataclass(frozen=True, slots=True)
class _Kubelet:
    """The kubelet of the victim's node: it calls the driver through the agent, for pods of its own."""

    attacked: Attack
    sidecar: Sidecar

    @property
    def layout(self) -> Layout:
        return Layout(self.attacked.root)

    def stage(self, name: str, context: dict[str, str]) -> csi.NodeStageVolumeRequest:
        return csi.NodeStageVolumeRequest(**self._words(name, context))

    def publish(self, name: str, context: dict[str, str]) -> csi.NodePublishVolumeRequest:
        target = self.layout.target(f"{name}-uid", f"pv-{name}")
        return csi.NodePublishVolumeRequest(**self._words(name, context), target_path=str(target))

    def _words(self, name: str, context: dict[str, str]) -> dict[str, Any]:
        return {
            "volume_id": f"h-{name}",
            "staging_target_path": str(self.layout.staging_target(_DRIVER, f"h-{name}")),
            "volume_capability": _MOUNT,
            "volume_context": context,
            "publish_context": _OF_KUBELET,
            "secrets": _OF_KUBELET,
        }

    async def call(self, request: Message) -> Outcome:
        method = type(request).__name__.removesuffix("Request")
        return await asyncio.to_thread(self.sidecar.call, method, request)

    async def told(self, name: str) -> None:
        """Wait until the agent has stored what the hub tells of a pod, and of those that it has told before."""

        def look() -> bool:
            return self.sidecar.call("NodeStageVolume", self.stage(name, _ASKED)).ok

        await asyncio.to_thread(wait_for, look, what=f"word of {name}", instead=self.attacked.agent.process.log_tail)


@asynccontextmanager
async def _kubelet(directory: Path, logs: Path) -> AsyncIterator[_Kubelet]:
    relay = directory / "relay"
    flags = ("--registration=observe", f"--relay-dir={relay}", f"--direct-run-dir={directory / 'run'}")
    async with attack(directory, logs, *flags, "--direct-runtime=kata=go:4.1") as attacked:
        with Sidecar(relay / f"{_DRIVER}.sock") as sidecar:
            yield _Kubelet(attacked, sidecar)


def _told(name: str, *, pv: str = "", uid: str = "", direct: str = "true") -> list[Any]:
    """Return the objects of a pod and its volume, as the hub tells them; no word in them is the kubelet's."""
    key = {"namespace": "default", "name": "key"}
    attributes = {DIRECT_VOLUME: direct, "of": "the hub"}
    source = {"driver": _DRIVER, "volumeAttributes": attributes, "nodeStageSecretRef": key, "nodeExpandSecretRef": key}
    pv = pv or f"pv-{name}"
    spec = {"runtimeClassName": "kata", "serviceAccountName": "admin"}
    return [
        _RULES,
        secret("key", of="the hub"),
        attachment(name, driver=_DRIVER, status={"attachmentMetadata": {"of": "the hub"}}),
        persistent_volume(name, csi=source) | {"metadata": {"name": pv}},
        persistent_claim(name, metadata={"uid": f"{name}-uid"}, volumeName=pv),
        pod(name, uid=uid, claims=(name,), spec=spec),
    ]


@needs_loops
async def test_a_hub_gives_a_driver_no_word_or_secret_of_its_own_and_no_path_outside_the_agents_directory(
    short_dir: Path, tmp_path: Path
) -> None:
    async with _kubelet(short_dir, tmp_path) as kubelet:
        hub, vendor = kubelet.attacked.hub, kubelet.attacked.vendor
        tricks = [{"pv": _OUT}, {"pv": ".."}, {"pv": "pv\nnone"}, {"uid": _OUT}, {"uid": ".."}]
        for number, trick in enumerate(tricks):
            bad = f"bad-{number}"
            hub.put(*_told(bad, **trick), *_told(good := f"good-{number}"))
            await kubelet.told(good)
            await kubelet.call(kubelet.stage(bad, _ASKED))
            assert (await kubelet.call(kubelet.publish(bad, _ASKED))).code is Code.FAILED_PRECONDITION, trick
            assert vendor.calls("NodePublishVolume") == [], trick
            hub.clear()
        hub.put(*_told("data"))
        await kubelet.told("data")
        outcome = await kubelet.call(kubelet.publish("data", _ASKED))
        assert "has published no block device" in outcome.message  # this driver makes a file
        for method in ("NodeStageVolume", "NodePublishVolume"):
            for asked in (call.request for call in vendor.calls(method)):
                words = asked.volume_context, asked.publish_context, asked.secrets
                assert [dict(each) for each in words] == [_ASKED, _OF_KUBELET, _OF_KUBELET], method
        own = kubelet.layout.beside_kubelet
        assert [path for path in vendor.paths if not _PLACES.fullmatch(path.removeprefix(str(own)))] == []
        assert kubelet.attacked.left_outside() == ["file"]


async def test_a_hub_makes_no_volume_direct_and_no_direct_one_an_ordinary_mount(
    short_dir: Path, tmp_path: Path
) -> None:
    async with _kubelet(short_dir, tmp_path) as kubelet:
        vendor = kubelet.attacked.vendor
        kubelet.attacked.hub.put(*_told("plain"), *_told("denied", direct="false"), *_told("data"))
        await kubelet.told("data")
        vendor.forget_calls()
        for request in (kubelet.stage("denied", _ASKED), kubelet.publish("denied", _ASKED)):
            assert (await kubelet.call(request)).code is Code.FAILED_PRECONDITION
        assert vendor.paths == set()
        ordinary = kubelet.stage("plain", _OF_KUBELET)
        assert (await kubelet.call(ordinary)).ok
        assert [call.data for call in vendor.calls("NodeStageVolume")] == [ordinary.SerializeToString()]
        refused = await kubelet.call(kubelet.publish("plain", _OF_KUBELET))
        assert "the volume's own attribute csi-bridge.io/direct-volume has to ask" in refused.message
        assert vendor.calls("NodePublishVolume") == []


@needs_loops
def test_a_hub_chooses_the_size_and_the_mount_in_the_guest(short_dir: Path, tmp_path: Path) -> None:
    with RelayingNode(short_dir, tmp_path) as node:
        node.start()
        node.handles["data"] = node.make_volume("data", size_bytes=32 << 20, block=True)
        node.grow("data", 64 << 20)
        objects = node.objects("data", size="64Mi", mountOptions=["noatime"])
        objects[1]["status"] = {"capacity": {"storage": "32Mi"}}
        node.write(*objects, node.pod("data", "data", securityContext={"fsGroup": 4321}), file="data")
        target = node.mount("data")  # the kubelet names neither options nor a group, and no runtime
        info = mount_info(node.run_dir, target)
        assert (info["options"], info["metadata"]["fsGroup"]) == (["noatime"], "4321")
        assert [call.method for call in node.calls()] == ["NodeStageVolume", "NodePublishVolume", "NodeExpandVolume"]
        node.unmount("data")
