"""`csi-bridge edge direct`: Kata's own commands, with errors that end in exit code 1 and say what to do."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from cli.main import cli
from edge.direct.mount_info import MountInfo
from edge.direct.store import DirectVolumeStore, key_of
from tests.kit.fake_shim import UNIMPLEMENTED, FakeShim, Flavour

if TYPE_CHECKING:
    from pathlib import Path

PATH = "/var/lib/kubelet/pods/u/volumes/kubernetes.io~csi/pv/mount"
INFO = '{"volume-type":"directvol","device":"/dev/sdf","fstype":"ext4","options":["ro","noatime"]}'
USAGE = {"usage": [{"available": 900, "total": 1000, "used": 100, "unit": 1}], "volume_condition": {"message": "OK"}}


class Host:
    """A host whose /run is a directory of the test."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.store = DirectVolumeStore.below(run_dir)

    def direct(self, command: str, *flags: str) -> tuple[int, str, str]:
        """Run a command; returns its exit code and outputs."""
        words = ["edge", "direct", command, f"--run-dir={self.run_dir}", *flags]
        result = CliRunner().invoke(cli, words, prog_name="csi-bridge")
        return result.exit_code, result.stdout, " ".join(result.stderr.split())

    def add(self) -> Path:
        assert self.direct("add", f"--volume-path={PATH}", f"--mount-info={INFO}") == (
            0,
            f"the runtimes mount {PATH} from now on as a direct volume\n",
            "",
        )
        return self.store.root / key_of(PATH)

    def shim(self, sandbox_id: str = "s", flavour: Flavour = Flavour.GO) -> FakeShim:
        shim = FakeShim(self.run_dir / ("vc/sbs" if flavour is Flavour.GO else "kata"), sandbox_id, flavour)
        shim.usage = {"/dev/sdf": USAGE}
        return shim


@pytest.fixture
def host(short_dir: Path) -> Host:
    return Host(short_dir)


def test_the_volume_that_is_added_is_katas_to_the_byte(host: Host) -> None:
    place = host.add()
    assert place.parent == host.run_dir / "kata-containers" / "shared" / "direct-volumes"
    assert (place / "mountInfo.json").read_text() == INFO
    assert host.store.get(PATH) == MountInfo(device="/dev/sdf", fs_type="ext4", options=("ro", "noatime"))


def test_a_host_without_volumes_says_so(host: Host) -> None:
    assert host.direct("list") == (0, f"no direct volume below {host.store.root}\n", "")
    assert host.direct("list", "-o", "json")[1] == "[]\n"


def test_the_list_has_each_volume_with_its_sandboxes_and_the_broken_ones_below(host: Host) -> None:
    place = host.add()
    (place / "s").touch()
    (place / "gone").touch()
    broken = host.store.root / key_of("/v")
    broken.mkdir()
    (broken / "mountInfo.json").write_text("{")
    with host.shim():
        code, told, _ = host.direct("list")
        [_, one] = json.loads(host.direct("list", "--output=json")[1])
    assert code == 0
    assert told.splitlines() == [
        f"VOLUME{' ' * (len(PATH) - 6)}  DEVICE    TYPE  OPTIONS     SANDBOX",
        f"/v{' ' * (len(PATH) - 2)}{' ' * 30}-",
        f"{PATH}  /dev/sdf  ext4  ro,noatime  gone (gone), s (running)",
        "",
        "the mount info of direct volume /v cannot be used: it is not JSON",
    ]
    assert one == {
        "path": PATH,
        "device": "/dev/sdf",
        "fs_type": "ext4",
        "options": ["ro", "noatime"],
        "metadata": {},
        "sandboxes": [{"id": "gone", "live": False}, {"id": "s", "live": True}],
        "error": "",
    }


def test_the_stats_are_those_of_the_guest(host: Host) -> None:
    (host.add() / "s").touch()
    with host.shim():
        code, told, _ = host.direct("stats", f"--volume-path={PATH}")
        as_json = json.loads(host.direct("stats", f"--volume-path={PATH}", "-o", "json")[1])
    assert code == 0
    assert told.splitlines() == [
        "UNIT    TOTAL  USED  AVAILABLE",
        "bytes   1000   100   900",
        "inodes  0      0     0",
        "",
        "the volume is normal: OK",
    ]
    assert (as_json["capacity_bytes"], as_json["abnormal"]) == (1000, False)


@pytest.mark.parametrize("command", [("stats",), ("resize", "--size=2GiB")], ids=lambda words: words[0])
def test_a_volume_that_does_not_exist_is_not_asked_about(host: Host, command: tuple[str, ...]) -> None:
    code, told, said = host.direct(*command, f"--volume-path={PATH}")
    assert (code, told) == (1, "")
    assert said == f"csi-bridge: there is no direct volume at {PATH}; csi-bridge edge direct list shows the volumes"


@pytest.mark.parametrize("command", [("stats",), ("resize", "--size=2GiB")], ids=lambda words: words[0])
def test_a_volume_whose_pod_does_not_run_says_what_to_look_at(host: Host, command: tuple[str, ...]) -> None:
    host.add()
    code, _, said = host.direct(*command, f"--volume-path={PATH}")
    assert code == 1
    assert said.startswith("csi-bridge: no running sandbox is known that uses device /dev/sdf: its pod has not started")
    assert said.endswith("; see that the pod runs; only Kata's Go runtime records its sandboxes")


def test_an_answer_for_people_is_no_answer(host: Host) -> None:
    (host.add() / "s").touch()
    with host.shim(flavour=Flavour.RUST):
        code, told, said = host.direct("stats", f"--volume-path={PATH}")
    assert (code, told) == (1, "")
    assert "in a form that only people can read; docs/runtime-assisted.md says what each version" in said


def test_a_resize_that_no_released_kata_can_do_fails_with_its_words(host: Host) -> None:
    (host.add() / "s").touch()
    with host.shim() as shim:
        shim.resize_error = UNIMPLEMENTED
        code, _, said = host.direct("resize", f"--volume-path={PATH}", "--size=2GiB")
    assert code == 1
    assert "does not do that: 500 rpc error: code = Unimplemented" in said


def test_a_guest_that_can_grow_a_file_system_is_told_the_bytes(host: Host) -> None:
    (host.add() / "s").touch()
    with host.shim() as shim:
        shim.resize_error = ""
        code, told, _ = host.direct("resize", f"--volume-path={PATH}", "--size=2GiB")
        assert shim.resizes == [("/dev/sdf", 2 << 30)]
    assert (code, told) == (0, "the guest has grown the file system of /dev/sdf to 2147483648 bytes\n")


def test_what_a_running_sandbox_uses_is_not_replaced(host: Host) -> None:
    (host.add() / "s").touch()
    with host.shim():
        code, _, said = host.direct(
            "add", f"--volume-path={PATH}", '--mount-info={"volume-type":"directvol","device":"/dev/x","fstype":"xfs"}'
        )
    assert (code, said) == (
        1,
        f"csi-bridge: sandbox s uses direct volume {PATH} with another mount info; stop its pod first",
    )


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ((f"--volume-path={PATH}", "--mount-info={}"), "the mount info cannot be used: it has no device"),
        (("--volume-path=a/b", f"--mount-info={INFO}"), "'a/b' cannot be the path of a direct volume"),
        ((f"--volume-path=/{'x' * 189}", f"--mount-info={INFO}"), "it is 190 bytes long"),
    ],
)
def test_what_no_runtime_would_find_or_read_is_not_added(host: Host, flags: tuple[str, ...], said: str) -> None:
    code, _, error = host.direct("add", *flags)
    assert code == 1
    assert said in error
    assert not host.store.root.exists()


def test_a_removed_volume_can_be_removed_again(host: Host) -> None:
    host.add()
    assert host.direct("remove", f"--volume-path={PATH}") == (
        0,
        f"the runtimes no longer mount {PATH} as a direct volume\n",
        "",
    )
    assert host.direct("remove", f"--volume-path={PATH}") == (0, f"there is no direct volume at {PATH}\n", "")


def test_a_store_that_cannot_be_read_is_told_with_its_reason(host: Host) -> None:
    host.store.root.parent.mkdir(parents=True)
    host.store.root.touch()
    code, _, said = host.direct("list")
    assert (code, said) == (1, f"csi-bridge: cannot read {host.store.root}: Not a directory")


def test_a_command_or_an_agent_that_does_not_need_it_imports_nothing_of_it() -> None:
    modules = "cli.main, edge.agent, edge.kubelet_part, cli.doctor.command"
    code = f"import sys, {modules}; print([it for it in sys.modules if it.startswith('edge.direct')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"
