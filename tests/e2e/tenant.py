"""A tenant: somebody with a namespace, claims and pods in it, who reads back what the pods have written.

A volume has one name in a pod: the claim's. A pod's container finds it at `/NAME`, a device at `/dev/NAME`.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from tests.e2e.cluster import Cluster, Driver
from tests.e2e.container_image import IMAGE
from tests.e2e.kubelet_node import KubeletNode
from tests.e2e.own_node import OwnNode
from tests.kit.deployed import grants
from tests.kit.needs import has_capability
from tests.kit.peers import manifests
from tests.kit.peers.claims import Claims
from tests.kit.peers.kube_api import Object
from tests.kit.waiting import wait_for

MIB = 1 << 20

SMALL_BYTES, LARGE_BYTES = 320 * MIB, 640 * MIB  # mkfs.xfs makes nothing below 300 MiB

_CAP_SYS_RESOURCE = 24
_FS_TYPE = "ext4" if has_capability(_CAP_SYS_RESOURCE) else "xfs"
"""To grow ext4 while it is mounted takes a capability that not every container's root has."""

_RUNNING_LIMIT_S = 120.0  # from a pod's creation to its containers: scheduling, attaching, staging, on a busy machine

_ROLLED_OUT_LIMIT_S = 240.0  # of three pods, one after the other

_GONE_LIMIT_S = 120.0
_EXPANDED_LIMIT_S = 120.0


class Tenant:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.api = cluster.api
        self.namespace = cluster.plane.new_namespace()  # the tenant's own
        self._own: list[tuple[str, str]] = []  # kind and name of what it made that is in no namespace

    def grant(self, **names: str) -> None:
        """Allow the bridge what a driver's values name, such as `serviceAccountTokens`, in the tenant's namespace."""
        for manifest in grants(**names):
            self.api.create({**manifest, "metadata": {**manifest["metadata"], "namespace": self.namespace}})

    # ---- claims ------------------------------------------------------------------------------------------------------

    def claims(self, driver: Driver) -> Claims:
        return Claims(api=self.api, namespace=self.namespace, storage_class=driver.name)

    def claim(self, name: str, driver: Driver, *, size_bytes: int = 64 * MIB, **fields: Any) -> Object:
        """Ask for a volume, and wait until it is bound; the PersistentVolume."""
        claims = self.claims(driver)
        claims.ask(name, size_bytes=size_bytes, **fields)
        return claims.wait_bound(name)

    def let_go(self, name: str, driver: Driver) -> None:
        """Delete a claim, and wait until its volume is gone from the cluster."""
        self.claims(driver).let_go(name)

    def wait_size(self, name: str, size_bytes: int) -> Object:
        """Wait until a claim says that it has this size, and that nothing is left to do; the claim."""
        wanted = {str(size_bytes), f"{size_bytes // MIB}Mi"}
        return self.api.wait_until(
            "PersistentVolumeClaim",
            name,
            lambda it: it["status"]["capacity"]["storage"] in wanted and not it["status"].get("conditions"),
            what=f"of {size_bytes // MIB} MiB",
            namespace=self.namespace,
            timeout_s=_EXPANDED_LIMIT_S,
        )

    def own_class(self, driver: Driver, **fields: Any) -> Claims:
        """The tenant's claims of a storage class of its own, with fields as `manifests.storage_class` takes them."""
        self.create_own(manifests.storage_class(driver.name, name=f"{self.namespace}-own", **fields))
        return self.claims(driver).of_class(f"{self.namespace}-own")

    def create_own(self, manifest: Object) -> Object:
        """Create an object that is in no namespace, until the tenant leaves."""
        self._own.append((manifest["kind"], manifest["metadata"]["name"]))
        return self.api.create(manifest)

    def growing(self, driver: Driver) -> Claims:
        """The tenant's claims of volumes of `SMALL_BYTES` that can grow to `LARGE_BYTES` while they are used."""
        parameters = {"csi.storage.k8s.io/fstype": _FS_TYPE}
        wait = driver.vendor.is_local
        return self.own_class(driver, wait_for_consumer=wait, allowVolumeExpansion=True, parameters=parameters)

    def attachments(self, volume: Object) -> list[Object]:
        name = volume["metadata"]["name"]
        return [it for it in self.api.all("VolumeAttachment") if it["spec"]["source"]["persistentVolumeName"] == name]

    def static_claim(self, name: str, driver: Driver, handle: str, *, size_bytes: int = 64 * MIB) -> Object:
        """Write a PersistentVolume for a volume that exists at the edge and a claim for it; wait until it is bound."""
        volume = f"{self.namespace}-{name}"
        capacity = {"storage": str(size_bytes)}
        self.create_own(manifests.persistent_volume(volume, driver=driver.name, handle=handle, capacity=capacity))
        claims = self.claims(driver).of_class("")
        claims.ask(name, size_bytes=size_bytes, volumeName=volume)
        return claims.wait_bound(name)

    # ---- pods --------------------------------------------------------------------------------------------------------

    def start_pod(
        self,
        name: str,
        node: str | None,
        *claims: str,
        devices: Iterable[str] = (),
        inline: Mapping[str, Object] | None = None,
        annotations: Mapping[str, str] | None = None,
        wait: bool = True,
        **spec: Any,
    ) -> Object:
        """Create a pod.

        Args:
            node: where it is to run, so the scheduler puts it there; None: it chooses.
            claims: those that it uses as file systems.
            devices: those that it uses as block devices.
            inline: inline volumes: name → CSI source.
            wait: whether to wait until it has its volumes.
            spec: further fields of the pod's spec.

        Returns:
            The pod, as it is then.
        """
        devices, inline = list(devices), inline or {}
        volumes: list[Object] = [{"name": it, "persistentVolumeClaim": {"claimName": it}} for it in (*claims, *devices)]
        volumes += [{"name": it, "csi": source} for it, source in inline.items()]
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": self.namespace, "annotations": dict(annotations or {})},
            "spec": {
                "nodeSelector": {"kubernetes.io/hostname": node} if node else {},
                **_pod_spec((*claims, *inline), devices),
                "volumes": volumes,
                **spec,
            },
        }
        made = self.api.create(pod)
        return self.wait_running(name) if wait else made

    def start_set(self, name: str, driver: Driver, *, replicas: int, size_bytes: int = 64 * MIB) -> None:
        """Create a StatefulSet whose pods are each on a node of its own, and wait until all run.

        Each has a claim of its own in the driver's class, as the volume `data`.
        """
        labels = {"app": name}
        elsewhere = {"labelSelector": {"matchLabels": labels}, "topologyKey": "kubernetes.io/hostname"}
        claim = manifests.claim("data", namespace=self.namespace, storage_class=driver.name, size_bytes=size_bytes)
        self.api.create(
            {
                "apiVersion": "apps/v1",
                "kind": "StatefulSet",
                "metadata": {"name": name, "namespace": self.namespace},
                "spec": {
                    "serviceName": "",
                    "replicas": replicas,
                    "selector": {"matchLabels": labels},
                    "template": {
                        "metadata": {"labels": labels},
                        "spec": {
                            **_pod_spec(["data"]),
                            "affinity": {
                                "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [elsewhere]}
                            },
                        },
                    },
                    "volumeClaimTemplates": [claim],
                },
            }
        )
        self._wait_rolled_out(name)

    def restart_set(self, name: str) -> None:
        """Let a StatefulSet make all its pods anew, one after the other, and wait until all run."""
        when = {"metadata": {"annotations": {"kubectl.kubernetes.io/restartedAt": "now"}}}
        self.api.patch("StatefulSet", name, {"spec": {"template": when}}, namespace=self.namespace)
        self._wait_rolled_out(name)

    def _wait_rolled_out(self, name: str) -> None:
        def look() -> bool:
            # Where no kubelet is, somebody else starts containers and says so.
            self.cluster.own.start_containers(self._pods())
            found = self.api.get("StatefulSet", name, namespace=self.namespace)
            assert found is not None
            status, replicas = found.get("status", {}), found["spec"]["replicas"]
            told = [status.get(it) for it in ("observedGeneration", "readyReplicas", "updatedReplicas")]
            is_told = told == [found["metadata"]["generation"], replicas, replicas]
            return is_told and bool(status["currentRevision"] == status["updateRevision"])

        wait_for(
            look,
            what=f"all pods of {name}",
            timeout_s=_ROLLED_OUT_LIMIT_S,
            instead=lambda: "\n".join(self.tell(it["metadata"]["name"]) for it in self._pods()),
        )

    def _pods(self) -> list[Object]:
        return self.api.all("Pod", namespace=self.namespace)

    def pod(self, name: str) -> Object | None:
        return self.api.get("Pod", name, namespace=self.namespace)

    def wait_running(self, name: str, *, timeout_s: float = _RUNNING_LIMIT_S) -> Object:
        """Wait until a pod has its volumes, and runs where anything runs pods; the pod."""

        def look() -> Object | None:
            found = self.pod(name)
            there = found and found["spec"].get("nodeName") and self.node_of(found).has_volumes(found)
            return found if there else None

        return wait_for(look, what=f"pod {name} with its volumes", timeout_s=timeout_s, instead=lambda: self.tell(name))

    def delete_pod(self, name: str) -> None:
        """Delete a pod, and wait until it is gone and nothing of its volumes is left on its node."""
        found = self.pod(name)
        assert found is not None, f"there is no pod {name}"
        self.api.delete("Pod", name, namespace=self.namespace)
        self.wait_gone(name)
        node, uid = self.node_of(found), found["metadata"]["uid"]
        wait_for(
            lambda: not [it for it in node.left_over() if uid in it or f"of {name} " in it],
            what=f"node {node.name} without volumes of pod {name}",
            timeout_s=_GONE_LIMIT_S,
            instead=node.tell,
        )

    def wait_gone(self, name: str) -> None:
        """Wait until there is no such pod."""
        wait_for(
            lambda: self.pod(name) is None,
            what=f"end of pod {name}",
            timeout_s=_GONE_LIMIT_S,
            instead=lambda: self.tell(name),
        )

    def node_of(self, pod: Object) -> KubeletNode | OwnNode:
        return self.cluster.node(pod["spec"]["nodeName"])

    # ---- what pods see -----------------------------------------------------------------------------------------------

    def write(self, pod: str, name: str, text: str) -> None:
        """Write a text to `VOLUME/FILE` in a pod, and bring it to the disk."""
        found = self._found(pod)
        self.node_of(found).write(found, name, text)

    def read(self, pod: str, name: str) -> str:
        found = self._found(pod)
        return self.node_of(found).read(found, name)

    def write_device(self, pod: str, name: str, text: str) -> None:
        found = self._found(pod)
        self.node_of(found).write_device(found, name, text)

    def read_device(self, pod: str, name: str, length: int) -> str:
        """Read so many bytes from the beginning of a block volume."""
        found = self._found(pod)
        return self.node_of(found).read_device(found, name, length)

    def size_bytes(self, pod: str, volume: str) -> int:
        found = self._found(pod)
        return self.node_of(found).size_bytes(found, volume)

    def _found(self, name: str) -> Object:
        found = self.pod(name)
        assert found is not None, f"there is no pod {name}"
        return found

    # ---- snapshots ---------------------------------------------------------------------------------------------------

    def snapshot(self, name: str, driver: Driver, *, claim: str) -> Object:
        """Take a snapshot of a claim's volume, and wait until it can be used; the VolumeSnapshot."""
        asked = manifests.snapshot(name, namespace=self.namespace, snapshot_class=driver.name, claim=claim)
        self.api.create(asked)
        return self.api.wait_status(
            "VolumeSnapshot", name, "readyToUse", namespace=self.namespace, timeout_s=_RUNNING_LIMIT_S
        )

    # ---- the end -----------------------------------------------------------------------------------------------------

    def tell(self, pod: str) -> str:
        """Why a pod does not run: itself, its events and its claims', and how the nodes stand."""
        found = self.pod(pod)
        names = [pod, *(it["name"] for it in (found or {"spec": {"volumes": []}})["spec"]["volumes"])]
        events = [f"{name}: {event}" for name in names for event in self.api.events(name, namespace=self.namespace)]
        return "\n".join([str(found), *events, self.cluster.tell()])

    def leave(self) -> None:
        """Remove what is left: pods, then snapshots, then claims, and wait until they and the volumes are gone."""
        for kind in ("StatefulSet", "Pod", "VolumeSnapshot", "PersistentVolumeClaim"):
            self._remove_all(kind)
        wait_for(
            lambda: not self._deletable_volumes(),
            what="end of all PersistentVolumes",
            timeout_s=_GONE_LIMIT_S,
            instead=self.cluster.tell,
        )
        for kind, name in reversed(self._own):
            self.api.delete(kind, name)
        self.api.delete("Namespace", self.namespace)

    def _deletable_volumes(self) -> list[Object]:
        """The PersistentVolumes that go with the tenant's claims."""
        return [
            it
            for it in self.api.all("PersistentVolume")
            if it["spec"]["persistentVolumeReclaimPolicy"] == "Delete"
            and it["spec"].get("claimRef", {}).get("namespace") == self.namespace
        ]

    def _remove_all(self, kind: str) -> None:
        for each in self.api.all(kind, namespace=self.namespace):
            self.api.delete(kind, each["metadata"]["name"], namespace=self.namespace)
        wait_for(
            lambda: not self.api.all(kind, namespace=self.namespace),
            what=f"end of all {kind}s",
            timeout_s=_GONE_LIMIT_S,
            instead=self.cluster.tell,
        )


def _pod_spec(mounted: Iterable[str], devices: Iterable[str] = ()) -> Object:
    """What the pods have in common: one container, with volumes by their names."""
    container = {
        "name": "main",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "volumeMounts": [{"name": it, "mountPath": f"/{it}"} for it in mounted],
        "volumeDevices": [{"name": it, "devicePath": f"/dev/{it}"} for it in devices],
    }
    return {
        "hostNetwork": True,
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 1,
        "tolerations": [{"operator": "Exists"}],
        "containers": [container],
    }
