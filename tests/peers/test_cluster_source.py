"""The hub's Kubernetes source on a real API server: what is there is known, through restarts and forgotten versions."""

import asyncio
import base64
import json
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from cloud.kube.client import RESOURCES, KubeError, connect
from cloud.sources.cluster.cluster import WATCHED, Cluster
from common.errors import SettingsError
from common.objects.objects import Ref
from tests.kit.peers import manifests
from tests.kit.peers.control_plane import ControlPlane
from tests.kit.waiting import until

Body = dict[str, Any]

_LIMIT_S = 60.0


def pod(namespace: str, name: str, **spec: Any) -> Body:
    return manifests.pod(name, namespace=namespace, claim="data", **spec or {"nodeName": "n1"})


@asynccontextmanager
async def following(kubeconfig: Path) -> AsyncIterator[Cluster]:
    async with connect(str(kubeconfig)) as kube:
        cluster = Cluster(kube)
        task = asyncio.create_task(cluster.run())
        try:
            yield cluster
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_objects_are_followed_from_the_first_list_on(control_plane: ControlPlane, namespace: str) -> None:
    api, one, two = control_plane.api, Ref("Pod", namespace, "one"), Ref("Pod", namespace, "two")
    await asyncio.to_thread(api.create, pod(namespace, "one"))
    async with following(control_plane.admin_kubeconfig()) as cluster:
        await until(lambda: cluster.is_ready, "the first lists", within_s=_LIMIT_S)
        assert cluster.problems() == []
        body = cluster.body(one)
        assert body is not None
        assert "image" not in json.dumps(body)
        first = cluster.stamp(one)
        assert first is not None
        await asyncio.to_thread(api.create, pod(namespace, "two"))
        await asyncio.to_thread(api.create, pod(namespace, "unscheduled", hostname="unscheduled"))
        await until(lambda: cluster.body(two) is not None, "a new pod", within_s=_LIMIT_S)
        status = {"status": {"phase": "Failed"}}
        await asyncio.to_thread(api.patch_status, "Pod", "one", status, namespace=namespace)
        await until(lambda: cluster.stamp(one) not in (None, first), "its new status", within_s=_LIMIT_S)
        await asyncio.to_thread(api.delete, "Pod", "two", namespace=namespace)
        await until(
            lambda: "deletionTimestamp" in (cluster.body(two) or {}).get("metadata", {}), "its end", within_s=_LIMIT_S
        )
        assert Ref("Pod", namespace, "unscheduled") not in set(cluster.refs("Pod"))


async def test_an_object_made_anew_under_its_name_has_its_own_uid(control_plane: ControlPlane, namespace: str) -> None:
    api, ref = control_plane.api, Ref("PersistentVolume", "", f"pv-{namespace}")
    volume = manifests.persistent_volume(ref.name, driver="d.csi", handle="h")
    async with following(control_plane.admin_kubeconfig()) as cluster:
        await until(lambda: cluster.is_ready, "the first lists", within_s=_LIMIT_S)
        uids = []
        for _ in range(2):
            made = await asyncio.to_thread(api.create, volume)
            await until(lambda: cluster.stamp(ref) is not None, "the volume", within_s=_LIMIT_S)
            stamp = cluster.stamp(ref)
            assert stamp is not None
            assert stamp.uid == made["metadata"]["uid"]
            uids.append(stamp.uid)
            await asyncio.to_thread(api.patch, "PersistentVolume", ref.name, {"metadata": {"finalizers": None}})
            await asyncio.to_thread(api.delete, "PersistentVolume", ref.name)
            await until(lambda: cluster.stamp(ref) is None, "its end", within_s=_LIMIT_S)
        assert uids[0] != uids[1]


@pytest.mark.slow
async def test_what_happened_while_the_api_server_was_away_is_known_afterwards(
    control_plane: ControlPlane, namespace: str
) -> None:
    api, kept, gone = control_plane.api, Ref("Pod", namespace, "kept"), Ref("Pod", namespace, "gone")
    for ref in (kept, gone):
        await asyncio.to_thread(api.create, pod(namespace, ref.name))
    async with following(control_plane.admin_kubeconfig()) as cluster:
        await until(lambda: cluster.is_ready and cluster.body(gone) is not None, "the first lists", within_s=_LIMIT_S)
        control_plane.api_server.kill()
        await until(lambda: bool(cluster.problems()), "a word about it", within_s=_LIMIT_S)
        assert cluster.is_ready
        assert cluster.body(kept) is not None
        control_plane.api_server.start()  # in this thread: it dies with the thread that started it
        await asyncio.to_thread(
            control_plane.api_server.wait_until, control_plane.ready, what="being ready", timeout_s=180.0
        )
        async with connect(str(control_plane.admin_kubeconfig())) as kube:
            stamp = cluster.stamp(gone)
            assert stamp is not None
            await kube.delete(RESOURCES["Pod"], "gone", namespace, uid=stamp.uid, grace_s=0)
        _compact(control_plane)
        new = Ref("Pod", namespace, "new")
        await asyncio.to_thread(api.create, pod(namespace, "new"))
        await until(
            lambda: cluster.body(new) is not None and cluster.body(gone) is None,
            "what happened meanwhile",
            within_s=_LIMIT_S,
        )
        await until(lambda: cluster.problems() == [], "the end of the trouble", within_s=_LIMIT_S)
        assert cluster.body(kept) is not None


async def test_a_deletion_of_another_uid_deletes_nothing(control_plane: ControlPlane, namespace: str) -> None:
    await asyncio.to_thread(control_plane.api.create, pod(namespace, "one"))
    async with connect(str(control_plane.admin_kubeconfig())) as kube:
        with pytest.raises(KubeError) as caught:
            await kube.delete(RESOURCES["Pod"], "one", namespace, uid="another", grace_s=0)
        assert caught.value.code == 409
        assert (await kube.get(RESOURCES["Pod"], "one", namespace))["metadata"]["name"] == "one"


async def test_a_refusal_quotes_no_value_of_a_secret(control_plane: ControlPlane, namespace: str) -> None:
    secret = {"metadata": {"name": "s", "namespace": namespace}, "data": {"password": "hunter2!"}}
    async with connect(str(control_plane.admin_kubeconfig())) as kube:
        with pytest.raises(KubeError) as caught:
            await kube.create(RESOURCES["Secret"], secret, namespace)
        assert "hunter2" not in str(caught.value)
        fine = {**secret, "data": {"password": base64.b64encode(b"hunter2").decode(), "wrong key!": ""}}
        with pytest.raises(KubeError) as caught:
            await kube.create(RESOURCES["Secret"], fine, namespace)
        assert caught.value.reason == "Invalid"
        assert "hunter2" not in str(caught.value)
        assert "data" in str(caught.value)


async def test_a_user_without_permission_is_told_which_one_is_missing(
    control_plane: ControlPlane, namespace: str
) -> None:
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "poor", "namespace": namespace}}
    await asyncio.to_thread(control_plane.api.create, account)
    kubeconfig = await asyncio.to_thread(control_plane.service_account_kubeconfig, namespace, "poor")
    async with following(kubeconfig) as cluster:
        await until(lambda: len(cluster.problems()) == len(WATCHED), "a word about each kind", within_s=_LIMIT_S)
        assert not cluster.is_ready
        assert any("cannot list resource" in it and "persistentvolumeclaims" in it for it in cluster.problems())


@pytest.mark.parametrize("text", [None, "", "{", "apiVersion: v1\nkind: Config\n", "- 1\n", "clusters: 3\n"])
async def test_a_kubeconfig_that_is_missing_or_cannot_be_used_is_named(text: str | None, tmp_path: Path) -> None:
    file = tmp_path / "kubeconfig"
    if text is not None:
        file.write_text(text)
    with pytest.raises(SettingsError, match="--kubeconfig"):
        async with connect(str(file)):
            pass


def _compact(control_plane: ControlPlane) -> None:
    """Let etcd forget all versions but the last."""
    url = f"{control_plane.etcd_url}/v3/kv"
    everything = {"key": base64.b64encode(b"/registry").decode(), "limit": 1}
    found = _post(f"{url}/range", everything)
    _post(f"{url}/compaction", {"revision": found["header"]["revision"], "physical": True})


def _post(url: str, body: Body) -> Body:
    request = urllib.request.Request(url, data=json.dumps(body).encode(), method="POST")
    with urllib.request.urlopen(request, timeout=10) as answer:
        decoded: Body = json.loads(answer.read())
        return decoded
