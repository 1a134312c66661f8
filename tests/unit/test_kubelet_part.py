"""Whose root directory and state directory it is, and what an agent does that may not use them."""

import asyncio
import errno
import json
import socket
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from cli.process_options import EDGE_OPTIONS
from common.errors import SettingsError
from common.objects.objects import Object, Ref, Stamp, encode_body
from common.objects.sync_messages import InStep, put
from common.observe.metrics import Metrics
from common.observe.tasks import supervised
from common.pages.agent import NodeVolumes
from common.pages.json_form import time_of
from edge import home, kubelet_part
from edge.calls.controller_lease import ControllerLease
from edge.csi_volume_plugin import VolumePlugin
from edge.disk import mounts
from edge.disk.found_volumes import Found
from edge.kubelet_part import KubeletPart
from edge.stores.metastore import Metastore
from edge.volume_errors import NotReady
from edge.wanted.states import Device
from tests.kit.edge_volumes import attachment, persistent_claim, persistent_volume, pod
from tests.kit.waiting import settle


def part(
    directory: Path,
    *,
    node: str = "n1",
    state: str = "state",
    root: str = "root",
    registration: str = "own",
    relay: str = "",
    direct: str = "",
) -> KubeletPart:
    settings = EDGE_OPTIONS.read(
        {
            "node": node,
            "hub": "ws://127.0.0.1:1",
            "insecure": "true",
            "state_dir": str(directory / state),
            "root_dir": str(directory / root),
            "registration": registration,
        }
        | ({"relay_dir": relay} if relay else {})
        | ({"direct_runtime": [direct]} if direct else {})
    )
    return KubeletPart(settings, Metrics())


@asynccontextmanager
async def running(part: KubeletPart) -> AsyncIterator[Metastore]:
    """Start it, yield its store, and close it."""
    async with supervised() as tasks:
        await part.start(tasks, ControllerLease(60.0))
        assert part.volumes is not None
        yield part.volumes.metastore
    await part.close()


async def test_a_root_directory_is_one_agents_alone_until_it_ends(tmp_path: Path) -> None:
    late = part(tmp_path, state="late")
    async with running(part(tmp_path)), supervised() as tasks:
        with pytest.raises(SettingsError, match=r"--root-dir=.*root: another edge agent is using it"):
            part(tmp_path, state="other")
        with pytest.raises(SettingsError, match=r"--root-dir=.*root: another edge agent is using it"):
            await late.start(tasks, ControllerLease(60.0))
    await late.close()
    await part(tmp_path, state="third").close()


def told(part: KubeletPart) -> NodeVolumes:
    """The page of the pods' volumes."""
    return part.describe(connected=True, since=time_of(0))


@pytest.mark.parametrize("place", ["pod-resources/kubelet.sock", "device-plugins/kubelet.sock"])
async def test_beside_a_running_kubelet_an_agent_only_observes(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setattr(kubelet_part, "_EDGECORE_SOCKET", short_dir / "root" / "device-plugins" / "kubelet.sock")
    kubelets = short_dir / "root" / place
    kubelets.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as kubelet:
        kubelet.bind(str(kubelets))
        kubelet.listen()
        with pytest.raises(SettingsError, match=r"a kubelet is running .* say --registration=observe"):
            part(short_dir)
        assert not (short_dir / "root" / "csi-bridge.lock").exists()
        observing = part(short_dir, registration="observe")
        assert told(observing).observing
        await observing.close()
    own = part(short_dir, state="own")  # the file is left over: nobody listens there any more
    assert not told(own).observing
    await own.close()


async def test_what_was_wanted_before_a_kubelets_time_is_not_wanted_again_after_it(tmp_path: Path) -> None:
    own = part(tmp_path)
    async with running(own) as store:
        bodies = (attachment(), persistent_volume(), persistent_claim(), pod(claims=("data",)))
        changes = [put(number, stored(body)) for number, body in enumerate(bodies, 1)]
        await store.objects.store([*changes, InStep(9)])
        await settle()
        assert told(own).volumes, "it is wanted now"
    observing = part(tmp_path, registration="observe")
    assert observing.problems == []
    await observing.close()
    again = part(tmp_path)
    async with running(again):
        await settle()
        state = told(again)
    assert (state.pods, state.volumes, state.as_of) == ([], [], None)


def stored(body: dict[str, Any]) -> Object:
    """An object as the hub tells it."""
    metadata = body["metadata"]
    ref = Ref(body["kind"], metadata.get("namespace", ""), metadata["name"])
    return Object(ref, Stamp(metadata.get("uid") or f"{metadata['name']}-uid", "1"), encode_body(body))


async def test_mounts_that_no_kubelet_sees_to_are_a_problem(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, table = short_dir / "root", short_dir / "mountinfo"
    edgecore = short_dir / "device-plugins.sock"
    monkeypatch.setattr(kubelet_part, "_EDGECORE_SOCKET", edgecore)
    mounted = f"{root}/pods/u/volumes/kubernetes.io~csi/pv/mount"
    line = f"36 35 98:0 / {mounted} rw,noatime master:1 - ext4 /dev/root rw\n"
    monkeypatch.setattr(mounts, "MOUNTINFO", table)
    table.write_text(line)
    assert "nothing unmounts them" in kubelet_part._unkept_mounts(root)
    table.write_text(line.replace("kubernetes.io~csi", "kubernetes.io~projected"))
    assert kubelet_part._unkept_mounts(root) == ""
    table.write_text(line)
    (root / "pod-resources").mkdir(parents=True)
    for path in (root / "pod-resources" / "kubelet.sock", edgecore):
        with socket.socket(socket.AF_UNIX) as kubelet:
            kubelet.bind(str(path))
            kubelet.listen()
            assert kubelet_part._unkept_mounts(root) == ""
        assert "nothing unmounts them" in kubelet_part._unkept_mounts(root)


async def test_rows_that_cannot_be_written_are_waited_for_and_said(tmp_path: Path) -> None:
    (tmp_path / "state" / "volumes.db").mkdir(parents=True)
    waiting = part(tmp_path)
    state = told(waiting)
    assert not state.started
    assert "volumes.db" in state.trouble
    await waiting.close()


async def test_rows_that_can_no_longer_be_written_are_said_until_they_can(tmp_path: Path) -> None:
    own = part(tmp_path)
    assert own.volumes is not None
    states = own.volumes._states
    assert states is not None
    with closing(sqlite3.connect(tmp_path / "state" / "volumes.db")) as other:
        other.execute("ALTER TABLE devices RENAME TO elsewhere")
        with pytest.raises(NotReady):
            await states.put(Device(driver="d", handle="h"))
        assert told(own).trouble == "no such table: devices"
        other.execute("ALTER TABLE elsewhere RENAME TO devices")
    await states.put(Device(driver="d", handle="h"))
    assert told(own).trouble == ""
    await own.close()


async def test_a_nodes_state_is_not_taken_for_another_nodes_nor_for_mounts_elsewhere(tmp_path: Path) -> None:
    async with running(part(tmp_path)) as store:
        await store.objects.store([put(1, stored(pod(claims=("data",)))), InStep(2)])
    with pytest.raises(SettingsError, match=r"^--node=n1-typo: .*state holds the state of --node=n1,"):
        part(tmp_path, node="n1-typo")
    with pytest.raises(SettingsError, match=r"^--root-dir=.*other: .* the state of --root-dir=.*root,"):
        part(tmp_path, root="other")
    assert not (tmp_path / "other").exists()
    await part(tmp_path, node="n1-typo", root="other", registration="observe").close()  # it takes nothing down
    await part(tmp_path).close()


async def test_a_typo_in_a_nodes_name_is_mended_by_the_right_name(tmp_path: Path) -> None:
    async with running(part(tmp_path, node="n1-typo", root="typo")) as store:
        store.facts.put(Ref("Node", "", "n1-typo"), {"metadata": {"name": "n1-typo"}})
        await store.objects.store([InStep(1)])
    right = part(tmp_path)
    async with running(right) as store:
        await settle()
        assert Ref("Node", "", "n1-typo") not in store.facts.refs("Node")
        assert told(right).as_of is None
    assert json.loads((tmp_path / "state" / "home.json").read_text())["node"] == "n1"
    assert list((tmp_path / "state").glob("edge.db.own-*"))


async def test_a_right_name_that_cannot_be_written_down_is_not_refused_for_the_wrong_one_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(part(tmp_path, node="n1-typo")):
        pass

    def fail(path: Path, *_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    with monkeypatch.context() as full_disk:
        full_disk.setattr(home, "write_state", fail)
        async with running(part(tmp_path)) as store:
            await store.objects.store([put(1, stored(pod("web"))), InStep(2)])
    await part(tmp_path).close()


async def test_a_state_directory_that_another_agent_uses_is_not_taken_from_it(tmp_path: Path) -> None:
    async with running(part(tmp_path, node="n1-typo", root="typo")):
        with pytest.raises(SettingsError, match=r"--state-dir=.*: another edge agent is using it"):
            part(tmp_path)


async def test_a_state_directory_is_no_nodes_before_an_agent_has_started_with_it(tmp_path: Path) -> None:
    await part(tmp_path, node="n1-typo").close()
    await part(tmp_path).close()


async def test_a_root_directory_that_cannot_be_read_ends_no_agent_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    scan, fails = VolumePlugin.scan, [NotReady("cannot read pods: Input/output error")] * 2

    async def fail_twice(plugin: VolumePlugin) -> Found:
        if fails:
            raise fails.pop()
        return await scan(plugin)

    monkeypatch.setattr(VolumePlugin, "scan", fail_twice)
    monkeypatch.setattr("edge.kubelet_part.TRY_AGAIN_S", 0.0)
    own = part(tmp_path)
    async with asyncio.timeout(5.0), supervised() as tasks:
        await own.start(tasks, ControllerLease(60.0))
        state = told(own)
        assert (state.started, state.trouble) == (False, "cannot read pods: Input/output error")
        await next(task for task in asyncio.all_tasks() if task.get_name() == "wait for the disk")
        state = told(own)
        assert (state.started, state.trouble) == (True, "")
    await own.close()
    assert len([text for text in caplog.messages if "Input/output error" in text]) == 1


def test_a_relay_is_for_nodes_with_a_kubelet_and_has_a_path_that_a_kubelet_can_be_told(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"--relay-dir=.*: is for nodes with a kubelet: say --registration=observe"):
        part(tmp_path, relay=str(tmp_path))
    with pytest.raises(SettingsError, match=r"--relay-dir=relay: must be an absolute path"):
        part(tmp_path, relay="relay", registration="observe")


def test_beside_a_kubelet_direct_volumes_need_the_relay(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"--direct-runtime=kata=go:4\.1:ext4\+xfs: needs --relay-dir beside"):
        part(tmp_path, registration="observe", direct="kata=go:4.1")
