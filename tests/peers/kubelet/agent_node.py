"""An agent node: a hub with manifests and our agent, as a `NodeUnderTest`.

What controllers and sidecars do in a cluster is a file here that is written, changed or removed: a pod that ends is a
file that goes, an attachment says from the start that it is attached, a volume that has grown is written with its new
size, and a pod has the tokens that drivers ask for. What the node tells comes from where the hub keeps it.
"""

import contextlib
import json
import threading
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from cli.edge_volumes import ask
from cloud.records.records import RecordKind
from common.errors import BridgeError
from common.pages.client import ask_page
from common.pages.hub import VolumeStatus
from common.pages.json_form import plain
from tests.kit.bridge import Agent, Bridge
from tests.kit.leftovers import clear
from tests.kit.state_db import records_in
from tests.kit.waiting import wait_for
from tests.peers.kubelet.node_under_test import Object

_NAME = "node-under-test"
_PERIODS = ("--volume-republish-interval=2s", "--volume-stats-interval=5s")
"""As short as those of the kubelet that was recorded."""

_UNTOLD = ("Namespace", "StorageClass")  # kinds that no node is told of


class AgentNode:
    """A hub and the agent of one node.

    Args:
        directory: for everything; its path must be short.
    """

    def __init__(self, directory: Path) -> None:
        self.name = _NAME
        self._directory = directory
        self._manifests = directory / "manifests"
        self._manifests.mkdir(parents=True)
        logs = directory / "logs"
        logs.mkdir()
        self._bridge = Bridge(directory, logs)
        self._agent: Agent | None = None
        self._objects: dict[tuple[str, str, str], Object] = {}
        self._lock = threading.Lock()

    @property
    def agent(self) -> Agent:
        assert self._agent is not None, "the node was not started"
        return self._agent

    @property
    def root(self) -> Path:
        return self._directory / f"{self.name}-kubelet"

    def start(self) -> None:
        """Start hub and agent; the node has been told all there is when this returns."""
        self.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.name}})
        self._bridge.start_hub(f"--manifests={self._manifests}")
        self._agent = self._bridge.start_agent(self.name, flags=_PERIODS)
        wait_for(lambda: self._state()["as_of"], what="word of the hub's", instead=self._bridge.log_tails)

    def stop(self) -> None:
        self._bridge.stop()
        clear(self._directory)

    def create(self, manifest: Object) -> Object:
        """Write an object; a claim is bound by the hub."""
        made = {**manifest, "metadata": {**manifest["metadata"], "uid": str(uuid.uuid4())}}
        if made["kind"] == "Pod" and (audiences := self._audiences()):
            self._write_tokens(made["metadata"], audiences)
        self._write(made)
        return made

    def delete(self, kind: str, name: str, *, namespace: str | None = None) -> None:
        """Remove an object's file. A pod's deletion counts when this returns: the hub waits whether it comes back."""
        with self._lock:
            if self._objects.pop((kind, namespace or "", name), None) is not None and kind not in _UNTOLD:
                self._file(kind, namespace or "", name).unlink()
        if kind == "Pod":
            self._wait_believed()

    def attach(self, attachment: Object, *, context: Mapping[str, str]) -> None:
        self.create({**attachment, "status": {"attached": True, "attachmentMetadata": dict(context)}})

    def wait_detachable(self, attachment: str) -> None:
        """Wait until the node has told that it uses the volume no more, and remove the attachment."""
        found = self._objects["VolumeAttachment", "", attachment]["spec"]
        source = self._objects["PersistentVolume", "", found["source"]["persistentVolumeName"]]["spec"]["csi"]
        key = f"kubernetes.io/csi/{source['driver']}^{source['volumeHandle']}"
        wait_for(lambda: not self._may_be_in_use(key), what=f"end of the use of {key}")
        self.delete("VolumeAttachment", attachment)

    def grow(self, *, claim: str, namespace: str, volume: str, size: str, node_expansion: bool) -> None:
        """Write a volume and its claim as the external resizer leaves them."""
        grown = self._objects["PersistentVolume", "", volume]
        asking = self._objects["PersistentVolumeClaim", namespace, claim]
        self._wait_believed()  # what was never believed to be small has not grown
        self._write({**grown, "spec": {**grown["spec"], "capacity": {"storage": size}}})
        status: dict[str, Any] = {"allocatedResources": {"storage": size}}
        if node_expansion:
            status["allocatedResourceStatuses"] = {"storage": "NodeResizePending"}
            status["capacity"] = grown["spec"]["capacity"]  # the file system has this size still
        else:
            status["capacity"] = {"storage": size}
        spec = {**asking["spec"], "resources": {"requests": {"storage": size}}}
        self._write({**asking, "spec": spec, "status": {**asking.get("status", {}), **status}})
        self._wait_believed()

    def claim(self, name: str, *, namespace: str) -> Object:
        written = self._objects["PersistentVolumeClaim", namespace, name]
        told = self._fact("PersistentVolumeClaim", namespace, name).get("status", {})
        return {**written, "status": {**written.get("status", {}), **told}}

    def registration(self, driver: str) -> Object:
        entries = self._fact("CSINode").get("spec", {}).get("drivers", [])
        meta = self._fact("Node").get("metadata", {})
        ids = json.loads(meta.get("annotations", {}).get("csi.volume.kubernetes.io/nodeid", "{}"))
        labels = {key: value for key, value in meta.get("labels", {}).items() if driver in key}
        entry: Object = next((it for it in entries if it["name"] == driver), {})
        return {"entry": entry, "node id": ids.get(driver, ""), "labels": labels}

    def is_published(self, pod: str, *, namespace: str) -> bool:
        found = [it for it in self._state()["pods"] if (it["namespace"], it["name"]) == (namespace, pod)]
        return bool(found) and found[0]["published"] == found[0]["volumes"]

    def is_gone(self, pod: str, *, namespace: str, uid: str) -> bool:
        state = self._state()
        known = any((it["namespace"], it["name"]) == (namespace, pod) for it in state["pods"])
        leaving = any(it["uid"] == uid for it in state["volumes"])
        return not known and not leaving and not (self.root / "pods" / uid).exists()

    def why_not(self, pod: str, *, namespace: str) -> str:
        with contextlib.suppress(BridgeError):
            volumes = [it for it in self._state()["volumes"] if it["namespace"] == namespace]
            return "\n".join([f"{pod}:", json.dumps(volumes, indent=1), self.agent.process.log_tail()])
        return self.agent.process.log_tail()

    def kill(self) -> None:
        self.agent.kill()

    def start_again(self) -> None:
        """Start the agent that was killed."""
        self.agent.start()

    def has_finished(self, driver: str) -> bool:
        return all(it["driver"] != driver for it in self._state()["volumes"])

    def _audiences(self) -> set[str]:
        """For whom any driver wants tokens; "" is the API server."""
        with self._lock:  # scenarios run beside each other
            drivers = [it for (kind, _, _), it in self._objects.items() if kind == "CSIDriver"]
        return {it["audience"] for driver in drivers for it in driver["spec"].get("tokenRequests") or ()}

    def _write_tokens(self, pod: Object, audiences: set[str]) -> None:
        """Give a pod tokens. It is told of them, and hands them on, if a driver of its own volumes asks for any."""
        token = {"token": "made by a test", "expirationTimestamp": "2099-01-01T00:00:00Z"}
        self._write(
            {
                "apiVersion": "csi-bridge.io/v1",
                "kind": "ServiceAccountToken",
                "metadata": {"name": pod["uid"], "namespace": pod["namespace"]},
                "tokens": {audience: dict(token) for audience in audiences},
            }
        )

    def _wait_believed(self) -> None:
        """Return when the hub goes by all that is written by now: all files count together."""
        mark = f"mark-{uuid.uuid4()}"
        spec = {"csi": {"driver": "mark.example", "volumeHandle": mark}, "accessModes": ["ReadWriteOnce"]}
        self.create(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": mark},
                "spec": {**spec, "capacity": {"storage": "1Mi"}},
            }
        )
        hub = self._bridge.hub.uds
        wait_for(
            lambda: any(it.pv == mark for it in ask_page(hub, "/volumes", list[VolumeStatus], timeout_s=10)),
            what="belief in what is written",
        )

    def _may_be_in_use(self, key: str) -> bool:
        told = self._fact("Node")
        return not told or key in told.get("status", {}).get("volumesInUse", [])

    def _state(self) -> Object:
        state: Object = plain(ask(self.agent.socket))
        return state

    def _write(self, made: Object) -> None:
        kind, meta = made["kind"], made["metadata"]
        namespace = meta.get("namespace", "")
        with self._lock:
            self._objects[kind, namespace, meta["name"]] = made
            if kind in _UNTOLD:
                return
            file = self._file(kind, namespace, meta["name"])
            new = file.with_name(f".{file.name}")
            new.write_text(yaml.safe_dump(made))
            new.replace(file)

    def _file(self, kind: str, namespace: str, name: str) -> Path:
        return self._manifests / f"{kind}-{namespace}-{name}.yaml".lower()

    def _fact(self, kind: str, namespace: str = "", name: str = _NAME) -> Object:
        """What the node has told of an object last; empty for nothing."""
        told = records_in(self._directory / "hub", RecordKind.FACT).get((self.name, kind, namespace, name))
        found: Object = told["body"] if told is not None else {}
        return found
