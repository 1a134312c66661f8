"""Whose state a state directory holds, and who is not let near it."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from common.errors import SettingsError
from edge.home import Home

ROOT = Path("/var/lib/kubelet")

IN_EDGE_DB = "CREATE TABLE objects (kind TEXT, name TEXT)", "INSERT INTO objects VALUES ('{}', 'x')"
IN_VOLUMES_DB = "CREATE TABLE {} (name TEXT)", "INSERT INTO {} VALUES ('x')"


def write(path: Path, statements: tuple[str, ...], word: str) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        for statement in statements:
            database.execute(statement.format(word))


def use(state_dir: Path) -> None:
    """The state knows of a mount."""
    write(state_dir / "volumes.db", IN_VOLUMES_DB, "publications")


def kept(state_dir: Path) -> dict[str, str]:
    content: dict[str, Any] = json.loads((state_dir / "home.json").read_text())
    assert content.pop("version") == 1
    return content


def test_a_new_state_directory_is_anybodys_until_it_is_kept(tmp_path: Path) -> None:
    Home(tmp_path, "n1", ROOT)
    Home(tmp_path, "n2", ROOT).write()
    assert kept(tmp_path) == {"node": "n2", "rootDir": "/var/lib/kubelet"}
    assert [path.name for path in tmp_path.iterdir()] == ["home.json"]


def test_the_same_node_with_the_same_root_directory_comes_back_and_writes_nothing(tmp_path: Path) -> None:
    Home(tmp_path, "n1", ROOT).write()
    before = (tmp_path / "home.json").stat()
    Home(tmp_path, "n1", ROOT).write()
    assert (tmp_path / "home.json").stat().st_ino == before.st_ino


def test_another_node_is_refused_with_both_names_and_what_to_do(tmp_path: Path) -> None:
    Home(tmp_path, "n1", ROOT).write()
    use(tmp_path)
    with pytest.raises(SettingsError) as refused:
        Home(tmp_path, "n1-typo", ROOT)
    assert str(refused.value) == (
        f"--node=n1-typo: {tmp_path} holds the state of --node=n1, whose volumes may be mounted: start with that; "
        "to change it, first remove the node's pods, and wait until `csi-bridge edge volumes` shows none; the agent "
        "then accepts another"
    )
    assert kept(tmp_path)["node"] == "n1"


def test_another_root_directory_is_refused_with_both_paths(tmp_path: Path) -> None:
    Home(tmp_path, "n1", ROOT).write()
    use(tmp_path)
    with pytest.raises(
        SettingsError, match=r"^--root-dir=/var/lib/edged: .* the state of --root-dir=/var/lib/kubelet,"
    ):
        Home(tmp_path, "n1", Path("/var/lib/edged"))


@pytest.mark.parametrize(("node", "root"), [("n1", "kubelet"), ("n1-typo", "edged")])
def test_a_state_that_never_knew_a_pod_or_a_volume_is_given_to_another_node(
    tmp_path: Path, node: str, root: str
) -> None:
    state = tmp_path / "state"
    Home(state, "n1-typo", tmp_path / "kubelet").write()
    write(state / "edge.db", IN_EDGE_DB, "Node")
    write(state / "volumes.db", IN_VOLUMES_DB[:1], "publications")
    (tmp_path / "kubelet" / "plugins_registry").mkdir(parents=True)
    Home(state, node, tmp_path / root).write()
    assert kept(state) == {"node": node, "rootDir": str(tmp_path / root)}
    assert not (state / "edge.db").exists(), "it is put aside"


@pytest.mark.parametrize(
    ("file", "statements", "word"),
    [
        ("edge.db", IN_EDGE_DB, "Pod"),
        ("volumes.db", IN_VOLUMES_DB, "publications"),
        ("volumes.db", IN_VOLUMES_DB, "devices"),
        ("edge.db", (), ""),
    ],
    ids=["a pod", "a publication", "a staging", "unreadable"],
)
def test_a_state_that_knows_a_pod_or_a_volume_or_cannot_be_read_is_kept(
    tmp_path: Path, file: str, statements: tuple[str, ...], word: str
) -> None:
    Home(tmp_path, "n1", ROOT).write()
    (tmp_path / file).write_bytes(b"" if statements else b"no database" * 100)
    write(tmp_path / file, statements, word)
    with pytest.raises(SettingsError, match="holds the state of"):
        Home(tmp_path, "n2", ROOT)


@pytest.mark.parametrize(
    "left",
    [
        "pods/u/volumes/kubernetes.io~csi/pv/mount",
        "pods/u/volumeDevices/kubernetes.io~csi/pv",
        "plugins/kubernetes.io/csi/d.example/0123/globalmount",
        "plugins/kubernetes.io/csi/volumeDevices/pv/data",
    ],
)
def test_a_volume_that_only_the_disk_knows_keeps_the_state_as_well(tmp_path: Path, left: str) -> None:
    """After the loss of its databases an agent finds there what is mounted, and under another name takes it down."""
    Home(tmp_path, "n1", tmp_path / "kubelet").write()
    (tmp_path / "kubelet" / left).mkdir(parents=True)
    with pytest.raises(SettingsError, match="holds the state of"):
        Home(tmp_path, "n2", tmp_path / "kubelet")


def test_a_path_from_here_is_the_same_as_the_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Home(tmp_path, "n1", Path("root")).write()
    Home(tmp_path, "n1", tmp_path / "root")


@pytest.mark.parametrize(
    "content", [b"", b"\xff", b"[]", b"{}", b'{"node": "n1"}', b'{"node": 1, "rootDir": "/"}', b"[" * 100_000]
)
def test_a_file_that_does_not_tell_is_named_and_written_anew(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "home.json").write_bytes(content)
    Home(tmp_path, "n1", ROOT).write()
    assert f"{tmp_path / 'home.json'} is unreadable" in caplog.text
    assert kept(tmp_path) == {"node": "n1", "rootDir": "/var/lib/kubelet"}


def test_a_disk_that_takes_nothing_keeps_no_node_from_its_volumes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "state").touch()
    Home(tmp_path / "state", "n1", ROOT).write()
    assert "home.json cannot be written" in caplog.text
