"""A directory of manifests: its files count together, and when they have been left alone."""

import errno
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from cloud.sources.manifests import manifest_files
from cloud.sources.manifests.manifest_files import MAX_FILE_BYTES, SETTLE_S, ManifestFiles, Now
from tests.kit.cluster_objects import as_yaml, node, pod

DAY_S = 86_400.0


class Directory:
    """A directory, and a clock that stands still and is behind the files' times."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.now = Now(steady=100.0, wall=0.0)
        self.restart()

    def write(self, name: str, *objects: Any, text: str | None = None) -> None:
        (self.path / name).write_text(as_yaml(*objects) if text is None else text)

    def scan(self, *, after: float = 0.0) -> list[str]:
        """The objects that count, some time later."""
        self.now = Now(self.now.steady + after, self.now.wall)
        self.files.scan(self.now)
        return sorted(str(ref) for ref in self.files.objects or ())

    def settled(self) -> list[str]:
        """The objects that count when no file changes any more."""
        self.scan()
        return self.scan(after=SETTLE_S)

    def restart(self) -> None:
        self.files = ManifestFiles(self.path)

    def problems(self) -> list[str]:
        return list(self.files.problems.values())


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    (tmp_path / "manifests").mkdir()
    return Directory(tmp_path / "manifests")


def test_all_yaml_and_json_files_are_read_and_nothing_else(directory: Directory) -> None:
    for number, name in enumerate(("a.yaml", "b.yml", "c.json", ".hidden.yaml", "d.txt", "e.yaml~")):
        directory.write(name, pod(f"p{number}"))
    (directory.path / "sub").mkdir()
    assert directory.settled() == ["Pod default/p0", "Pod default/p1", "Pod default/p2"]


def test_a_change_counts_when_no_file_has_changed_for_a_time(directory: Directory) -> None:
    directory.write("a.yaml", pod("a"))
    assert directory.scan() == []
    assert directory.files.unsettled
    directory.write("b.yaml", pod("b"))
    assert directory.scan(after=SETTLE_S) == []
    assert directory.scan(after=SETTLE_S) == ["Pod default/a", "Pod default/b"]
    assert not directory.files.unsettled
    (directory.path / "b.yaml").unlink()
    assert directory.scan() == ["Pod default/a", "Pod default/b"]
    assert directory.scan(after=SETTLE_S) == ["Pod default/a"]


def test_files_that_were_written_before_the_hub_started_count_at_once(directory: Directory) -> None:
    directory.write("a.yaml", pod("a"))
    directory.now = Now(steady=100.0, wall=(directory.path / "a.yaml").stat().st_ctime + DAY_S)
    assert directory.scan() == ["Pod default/a"]


def test_an_unchanged_file_is_not_read_again(directory: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    directory.write("a.yaml", pod("a"))
    directory.write("b.yaml", pod("b"))
    directory.settled()
    read: list[str] = []
    read_objects = manifest_files.read_objects
    monkeypatch.setattr(
        manifest_files, "read_objects", lambda name, data: (read.append(name), read_objects(name, data))[1]
    )
    before = directory.files.objects
    assert directory.settled() == ["Pod default/a", "Pod default/b"]
    assert directory.files.objects is before
    directory.write("b.yaml", pod("c"))
    assert directory.settled() == ["Pod default/a", "Pod default/c"]
    assert read == ["b.yaml"]


def test_an_object_moves_from_one_file_to_another_and_is_never_missing(directory: Directory) -> None:
    directory.write("a.yaml", pod("x"))
    directory.settled()
    directory.write("b.yaml", pod("x"), pod("y"))
    assert directory.settled() == ["Pod default/x"]
    assert directory.problems() == ["b.yaml:1: Pod default/x is already at a.yaml:1"]
    (directory.path / "a.yaml").unlink()
    assert directory.settled() == ["Pod default/x", "Pod default/y"]
    assert directory.problems() == []


def test_a_mounted_config_map_changes_as_a_whole(directory: Directory) -> None:
    for version in ("..1", "..2"):
        (directory.path / version).mkdir()
        (directory.path / version / "a.yaml").write_text(as_yaml(pod(f"v{version[2:]}")))
    (directory.path / "..data").symlink_to("..1")
    (directory.path / "a.yaml").symlink_to("..data/a.yaml")
    assert directory.settled() == ["Pod default/v1"]
    (directory.path / "..new").symlink_to("..2")
    (directory.path / "..new").replace(directory.path / "..data")
    assert directory.settled() == ["Pod default/v2"]


def test_while_one_file_is_broken_all_objects_stay_as_they_were(directory: Directory) -> None:
    directory.write("a.yaml", pod("a"))
    directory.write("b.yaml", pod("b"))
    directory.settled()
    directory.write("a.yaml", text="kind: Pod\n")
    directory.write("b.yaml", pod("c"))
    assert directory.settled() == ["Pod default/a", "Pod default/b"]
    assert directory.problems() == ["a.yaml:1: Pod without a name: apiVersion is missing"]
    directory.write("a.yaml", node("n1"))
    assert directory.settled() == ["Node n1", "Pod default/c"]
    assert directory.problems() == []


@pytest.mark.parametrize("make", ["empty", "pipe", "socket", "directory", "dangling link"])
def test_a_file_that_cannot_be_a_manifest_is_named_and_never_waited_for(
    directory: Directory, make: str, short_dir: Path
) -> None:
    directory.write("a.yaml", pod("a"))
    directory.settled()
    path = directory.path / "b.yaml"
    match make:
        case "empty":
            path.touch()
        case "pipe":
            os.mkfifo(path)
        case "socket":
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(str(short_dir / "s"))
            (short_dir / "s").rename(path)
        case "directory":
            path.mkdir()
        case _:
            path.symlink_to("nowhere")
    assert directory.settled() == ["Pod default/a"]
    (problem,) = directory.problems()
    assert problem.startswith("b.yaml: it ")


def test_a_file_with_only_a_comment_has_no_objects_and_is_good(directory: Directory) -> None:
    directory.write("a.yaml", pod("a"))
    directory.settled()
    directory.write("a.yaml", text="# nothing\n")
    assert directory.settled() == []
    assert directory.problems() == []


def test_a_file_that_is_too_large_is_refused(directory: Directory) -> None:
    directory.write("a.yaml", text="#" * (MAX_FILE_BYTES + 1))
    directory.settled()
    assert directory.problems() == ["a.yaml: it is larger than 16 MiB; split it"]


def test_a_file_that_could_not_be_read_for_a_time_is_read_when_it_can_be(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Path) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    directory.write("a.yaml", pod("a"))
    with monkeypatch.context() as patch:
        patch.setattr(manifest_files, "_bytes_of", fail)
        assert directory.settled() == []
        assert directory.problems() == ["a.yaml: it cannot be read (Input/output error)"]
    assert directory.scan() == ["Pod default/a"]
    assert directory.problems() == []


@pytest.mark.parametrize("instead", ["nothing", "an empty directory", "a file"])
def test_a_directory_without_manifests_removes_no_object(directory: Directory, instead: str) -> None:
    directory.write("a.yaml", pod("a"))
    directory.settled()
    directory.path.rename(directory.path.with_name("away"))
    if instead == "an empty directory":
        directory.path.mkdir()
    elif instead == "a file":
        directory.path.touch()
    assert directory.settled() == ["Pod default/a"]
    assert len(directory.problems()) == 1


def test_a_directory_that_never_had_an_object_may_be_empty_and_must_be_there(directory: Directory) -> None:
    assert (directory.settled(), directory.problems(), directory.files.objects) == ([], [], None)
    directory.write("a.yaml", text="broken: [")
    for _ in range(2):
        directory.settled()
        assert [problem[:6] for problem in directory.problems()] == ["a.yaml"]
        (directory.path / "a.yaml").rename(directory.path / "away")
        assert (directory.settled(), directory.problems()) == ([], [])
        (directory.path / "away").rename(directory.path / "a.yaml")
    directory.write("a.yaml", pod("a"))
    assert directory.settled() == ["Pod default/a"]
    (directory.path / "a.yaml").unlink()
    directory.restart()
    assert (directory.settled(), directory.problems(), directory.files.objects) == ([], [], None)
    directory.path.rmdir()
    assert (directory.settled(), len(directory.problems())) == ([], 1)


@pytest.mark.parametrize("broken", ["broken: [", "", None])
def test_manifests_that_are_broken_at_a_restart_tell_of_no_object_until_they_are_good(
    directory: Directory, broken: str | None
) -> None:
    directory.write("a.yaml", pod("a"))
    directory.settled()
    away = directory.path.with_name("away")
    if broken is None:
        directory.path.rename(away)
    else:
        directory.write("b.yaml", text=broken)
    directory.restart()
    directory.settled()
    assert (directory.files.objects, len(directory.problems())) == (None, 1)
    if broken is None:
        away.rename(directory.path)
    else:
        (directory.path / "b.yaml").unlink()
    assert (directory.settled(), directory.problems()) == (["Pod default/a"], [])
