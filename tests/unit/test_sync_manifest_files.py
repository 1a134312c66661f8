"""A directory of manifests: what is written counts when it has been left alone."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import time
from typing import TYPE_CHECKING, Any

import pytest

from cloud.sources.manifests import manifest_files
from cloud.sources.manifests.good_manifests import GoodManifests
from cloud.sources.manifests.manifest_files import MAX_FILE_BYTES, ManifestFiles, Now
from common.errors import NewerState, SettingsError
from common.objects import Ref, encode_body
from common.sealing import Sealer
from tests.kit.cluster_objects import as_yaml, claim, driver, node, pod, secret, volume

if TYPE_CHECKING:
    from pathlib import Path

DAY = 86_400.0


KEY = Sealer(b"k" * 32)


class World:
    """A directory, and a clock that stands still: files were written a day ago unless a test says `fresh`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.state_dir = directory.with_name("state")
        self.files = ManifestFiles(directory, settle_s=1.0, kept=GoodManifests(self.state_dir, KEY))
        self.now = Now(steady=100.0, wall=2_000_000_000.0)
        self.writes = 0

    def write(self, name: str, *objects: Any, text: str | None = None, fresh: bool = False) -> None:
        path = self.directory / name
        path.write_text(as_yaml(*objects) if text is None else text)
        self.touch(path, fresh=fresh)

    def touch(self, path: Path, *, fresh: bool) -> None:
        self.writes += 1  # two writes differ in their times, however quickly they follow each other
        when = int((self.now.wall - (0.0 if fresh else DAY)) * 1e9) + self.writes
        os.utime(path, ns=(when, when))

    def scan(self, *, after: float = 0.0) -> list[str]:
        """The objects, some time later."""
        self.now = Now(self.now.steady + after, self.now.wall + after)
        self.files.scan(self.now)
        return sorted(str(ref) for ref in self.files.objects()[0])

    def restart(self) -> None:
        """The hub comes back and knows what is on its disk."""
        self.files = ManifestFiles(self.directory, settle_s=1.0, kept=GoodManifests(self.state_dir, KEY))

    def is_complete(self) -> bool:
        return self.files.was_complete

    def problems(self) -> list[str]:
        return [*self.files.problems().values(), *self.files.objects()[1].values()]


@pytest.fixture
def world(tmp_path: Path) -> World:
    directory = tmp_path / "manifests"
    directory.mkdir()
    return World(directory)


def test_all_yaml_and_json_files_are_read_and_nothing_else(world: World) -> None:
    world.write("a.yaml", node("a"))
    world.write("b.yml", node("b"))
    world.write("c.json", text='{"kind": "Node", "apiVersion": "v1", "metadata": {"name": "c"}}')
    for name in (".hidden.yaml", "d.yaml~", "d.yaml.swp", "README.md", "odd\nname.yaml"):
        world.write(name, text="no: [yaml")
    (world.directory / "sub").mkdir()
    (world.directory / "sub" / "e.yaml").write_text("no: [yaml")
    assert world.scan() == ["Node a", "Node b", "Node c"]
    assert (world.problems(), world.is_complete(), world.files.unsettled) == ([], True, False)


def test_a_file_is_read_again_only_when_it_has_changed(world: World) -> None:
    world.write("a.yaml", node("a"))
    world.scan()
    before = world.files.revision
    world.scan(after=100)
    assert world.files.revision == before
    world.write("a.yaml", node("a"), node("b"))
    assert world.scan() == ["Node a", "Node b"]
    assert world.files.revision > before


# -------------------- broken files --------------------


def test_a_broken_file_stays_as_a_whole_what_it_was_and_the_others_go_on(world: World) -> None:
    world.write("a.yaml", node("a"), node("b"))
    world.write("c.yaml", node("c"))
    world.scan()
    world.write("a.yaml", node("a"), node("new"), {"kind": "Node", "apiVersion": "v1", "metadata": {}})
    world.write("c.yaml", node("c"), node("d"))
    assert world.scan() == ["Node a", "Node b", "Node c", "Node d"]
    assert world.problems() == ["a.yaml:15: Node without a name: metadata.name is missing; its last good version stays"]
    world.write("a.yaml", node("a"), node("b"), node("new"))
    assert "Node new" in world.scan()
    assert world.problems() == []


def test_nothing_is_complete_before_every_file_was_good_once(world: World) -> None:
    world.write("a.yaml", node("a"))
    world.write("b.yaml", text="b: [")
    assert world.scan() == ["Node a"]
    assert not world.is_complete()
    assert world.problems()[0].endswith("; no good version of it is known")
    world.write("b.yaml", node("b"))
    world.scan()
    assert world.is_complete()
    world.write("c.yaml", text="c: [")
    world.scan()
    assert world.is_complete()


def test_what_is_no_file_is_named_and_never_waited_for(world: World) -> None:
    os.mkfifo(world.directory / "fifo.yaml")
    (world.directory / "directory.yaml").mkdir()
    (world.directory / "dangling.yaml").symlink_to("nothing")
    (world.directory / "loop.yaml").symlink_to("loop.yaml")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(world.directory / "socket.yaml"))
    world.write("good.yaml", node("a"))
    world.scan()
    assert world.scan(after=1) == ["Node a"]
    starts = sorted(text.split(":")[0] for text in world.problems())
    assert starts == ["dangling.yaml", "directory.yaml", "fifo.yaml", "loop.yaml", "socket.yaml"]


@pytest.mark.parametrize("known", [True, False], ids=["known before", "new"])
def test_a_file_that_could_not_be_opened_for_a_time_is_read_when_it_can_be(
    world: World, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    def fail(path: Path) -> bytes:
        raise OSError(errno.EMFILE, "Too many open files")

    if known:
        world.write("a.yaml", node("a"))
        world.scan()
    world.write("a.yaml", node("a"), node("b"))
    with monkeypatch.context() as patch:
        patch.setattr(manifest_files, "_bytes_of", fail)
        world.scan()
        assert "a.yaml: it cannot be read (Too many open files)" in world.problems()[0]
        revision = world.files.revision
        world.scan(after=5.0)
        assert world.files.revision == revision
    assert world.scan(after=5.0) == ["Node a", "Node b"]
    assert world.problems() == []
    assert world.is_complete()


def test_a_file_that_is_too_large_is_refused(world: World) -> None:
    world.write("a.yaml", text="#" * (MAX_FILE_BYTES + 1))
    world.scan()
    assert world.problems() == ["a.yaml: it is larger than 16 MiB; split it; no good version of it is known"]


def test_a_dangling_link_keeps_what_it_led_to(world: World) -> None:
    target = world.directory / ".target"
    world.write(".target", node("a"))
    (world.directory / "a.yaml").symlink_to(".target")
    assert world.scan() == ["Node a"]
    target.unlink()
    world.scan()
    assert world.scan(after=60) == ["Node a"]
    assert world.problems() == ["a.yaml: it cannot be read (No such file or directory); its last good version stays"]


def test_an_empty_file_is_broken_for_a_full_disk_and_a_power_cut_leave_one(world: World) -> None:
    world.write("a.yaml", node("a"))
    world.scan()
    world.write("a.yaml", text="")
    assert world.scan() == ["Node a"]
    assert world.problems() == [
        "a.yaml: it is empty; delete the file if its objects are to go; its last good version stays"
    ]
    (world.directory / "a.yaml").unlink()
    world.scan()
    assert world.scan(after=1.0) == []
    assert world.problems() == []


@pytest.mark.parametrize("text", ["# nothing now\n", "\n", "---\n"])
def test_a_file_that_says_in_so_many_words_that_there_is_nothing_is_none_that_is_broken(
    world: World, text: str
) -> None:
    world.write("a.yaml", node("a"))
    world.scan()
    world.write("a.yaml", text=text)
    assert world.scan() == []
    assert world.problems() == []


# -------------------- what is written counts when it was left alone --------------------


def test_an_addition_may_be_half_written_too(world: World) -> None:
    """Cut short it may still be good YAML, of another volume."""
    world.write("a.yaml", node("a"))
    world.scan()
    text = as_yaml(volume("v", csi={"driver": "d.example", "volumeHandle": "vol-123"}))
    half = text[: text.index("vol-123") + len("vol-1")]
    world.write("v.yaml", text=half, fresh=True)
    world.write("a.yaml", text=f"{as_yaml(node('a'))}---\n{half}", fresh=True)
    assert world.scan() == ["Node a"]
    assert world.files.unsettled
    world.write("v.yaml", text=text, fresh=True)
    world.write("a.yaml", node("a"), fresh=True)
    assert world.scan(after=0.9) == ["Node a"]
    assert world.scan(after=1.0) == ["Node a", "PersistentVolume v"]
    found = world.files.objects()[0][Ref("PersistentVolume", "", "v")]
    assert found.item.body["spec"]["csi"]["volumeHandle"] == "vol-123"
    assert not world.files.unsettled


def test_a_file_that_was_written_before_the_hub_started_counts_at_once(world: World) -> None:
    world.write("a.yaml", node("a"), fresh=True)
    world.now = Now(world.now.steady, world.now.wall + 1.1)
    assert world.scan() == ["Node a"]
    assert world.is_complete()


@pytest.mark.parametrize("halves", [[node("a")], [node("a"), pod("web")]], ids=["says less", "says something else"])
def test_a_file_that_is_just_written_may_be_half_written(world: World, halves: list[Any]) -> None:
    world.write("a.yaml", node("a"), pod("web", claims=("data",)))
    whole = world.scan()
    world.write("a.yaml", *halves, fresh=True)
    before = world.files.objects()[0]
    assert world.scan() == whole
    assert world.files.objects()[0] == before
    assert world.files.unsettled
    world.write("a.yaml", *halves, fresh=True)  # written again: it begins anew
    assert world.scan(after=0.9) == whole
    assert world.files.objects()[0] == before
    world.scan(after=1.0)
    assert world.files.objects()[0] != before
    assert not world.files.unsettled


def test_a_half_written_file_that_is_broken_is_not_named_at_once(world: World) -> None:
    world.write("a.yaml", node("a"))
    world.scan()
    world.write("a.yaml", text="kind: No\nmetada", fresh=True)
    world.scan()
    assert world.problems() == []
    world.write("a.yaml", node("a"), node("b"), fresh=True)
    assert world.scan(after=0.9) == ["Node a"]
    assert world.scan(after=1.0) == ["Node a", "Node b"]
    world.write("a.yaml", text="kind: No\nmetada", fresh=True)
    world.scan(after=0.1)
    world.scan(after=1.0)
    assert len(world.problems()) == 1


def test_a_file_that_was_written_long_ago_and_put_there_just_now_is_not_believed_at_once(world: World) -> None:
    """As `rsync -a`, `tar` and `mv` do, one file after the other, while an object goes from one to the other."""
    world.write("a.yaml", node("a"))
    world.write("b.yaml", node("b"), node("moves"))
    whole = world.scan()
    world.now = Now(world.now.steady, time.time())
    for name, objects in {"b.yaml": [node("b")], "a.yaml": [node("a"), node("moves")]}.items():
        world.write(f".{name}", *objects)
        (world.directory / f".{name}").rename(world.directory / name)
        assert world.scan() == whole
        assert world.files.unsettled
    assert world.scan(after=1.0) == whole
    assert not world.files.unsettled


def test_a_file_dated_in_the_future_is_believed_as_well(world: World) -> None:
    world.write("a.yaml", node("a"), node("b"))
    world.scan()
    world.write("a.yaml", node("a"))
    os.utime(world.directory / "a.yaml", (4e9, 4e9))
    assert world.scan() == ["Node a", "Node b"]
    assert world.scan(after=1.0) == ["Node a"]


def test_a_deleted_file_is_deleted_when_it_stays_away(world: World) -> None:
    world.write("a.yaml", node("a"))
    world.write("b.yaml", node("b"))
    world.scan()
    (world.directory / "a.yaml").unlink()
    assert world.scan() == ["Node a", "Node b"]
    assert world.scan(after=1.0) == ["Node b"]


def test_a_file_that_an_editor_puts_aside_for_a_moment_is_not_deleted(world: World) -> None:
    world.write("a.yaml", node("a"))
    world.write("b.yaml", node("b"))
    whole = world.scan()
    (world.directory / "a.yaml").rename(world.directory / "a.yaml~")
    assert world.scan(after=0.5) == whole
    world.write("a.yaml", node("a"), node("c"), fresh=True)
    assert world.scan(after=0.6) == whole
    assert world.scan(after=60) == [*whole, "Node c"]


def test_the_last_file_of_a_directory_can_be_deleted(world: World) -> None:
    world.write("a.yaml", node("a"))
    world.scan()
    (world.directory / "a.yaml").unlink()
    world.scan()
    assert world.scan(after=1.0) == []
    assert world.problems() == []


# -------------------- the directory --------------------


def test_a_directory_that_is_gone_takes_nothing_away(world: World) -> None:
    world.write("a.yaml", node("a"))
    world.scan()
    away = world.directory.rename(world.directory.with_name("away"))
    world.scan()
    assert world.scan(after=DAY) == ["Node a"]
    assert world.problems() == [
        f"{world.directory} cannot be read (No such file or directory): the objects from it stay as they were"
    ]
    assert world.files.identity is None
    away.rename(world.directory)
    assert world.scan() == ["Node a"]
    assert world.problems() == []


def test_an_empty_directory_in_its_place_takes_nothing_away(world: World) -> None:
    """A mount point is one, when nothing is mounted on it."""
    world.write("a.yaml", node("a"))
    world.scan()
    world.directory.rename(world.directory.with_name("away"))
    world.directory.mkdir()
    world.scan()
    assert world.scan(after=DAY) == ["Node a"]
    assert "holds no manifest" in world.problems()[0]
    world.write("b.yaml", node("b"))
    world.scan()
    assert world.scan(after=1.0) == ["Node b"]


def test_a_new_empty_directory_takes_nothing_away_even_with_the_inode_of_the_old_one(world: World) -> None:
    world.write("a.yaml", node("a"))
    world.scan()
    shutil.rmtree(world.directory)
    world.directory.mkdir()  # ext4 gives it the same inode
    world.scan()
    assert world.scan(after=DAY) == ["Node a"]
    assert "holds no manifest" in world.problems()[0]


def test_a_file_in_the_directorys_place_takes_nothing_away(world: World) -> None:
    world.write("a.yaml", node("a"))
    world.scan()
    world.directory.rename(world.directory.with_name("away"))
    world.directory.touch()
    assert world.scan(after=DAY) == ["Node a"]
    assert "(Not a directory)" in world.problems()[0]


def test_a_directory_that_is_empty_or_missing_at_the_start_is_not_complete(world: World) -> None:
    world.scan()
    assert not world.is_complete()
    world.directory.rmdir()
    world.scan()
    assert not world.is_complete()
    world.directory.mkdir()
    world.write("a.yaml", node("a"))
    world.scan()
    assert world.is_complete()


def test_a_mounted_config_map_changes_as_a_whole(world: World) -> None:
    def version(number: int, *objects: Any) -> None:
        data = world.directory / f"..data-{number}"
        data.mkdir()
        (data / "a.yaml").write_text(as_yaml(*objects))
        world.touch(data / "a.yaml", fresh=False)
        (world.directory / "..tmp").symlink_to(data.name)
        (world.directory / "..tmp").rename(world.directory / "..data")

    version(1, node("a"))
    (world.directory / "a.yaml").symlink_to("..data/a.yaml")
    assert world.scan() == ["Node a"]
    version(2, node("b"))
    assert world.scan() == ["Node b"]


# -------------------- twice --------------------


def test_of_two_objects_of_one_name_the_first_counts_and_both_places_are_named(world: World) -> None:
    world.write("a.yaml", node("n", of="a"), node("n", of="a2"))
    world.write("b.yaml", node("m"), node("n", of="b"))
    assert world.scan() == ["Node m", "Node n"]
    found, _ = world.files.objects()
    assert [entry.item.body["metadata"]["labels"]["of"] for entry in found.values() if entry.ref.name == "n"] == ["a"]
    assert world.problems() == [
        "a.yaml:8: Node n is already at a.yaml:1, and that one counts",
        "b.yaml:7: Node n is already at a.yaml:1, and that one counts",
    ]


def test_an_object_on_its_way_from_one_file_to_another_is_never_away(world: World) -> None:
    world.write("b.yaml", node("n"), node("m"))
    world.scan()
    world.write("a.yaml", node("n"), fresh=True)
    world.write("b.yaml", node("m"), fresh=True)
    assert world.scan() == ["Node m", "Node n"]
    assert world.problems() == []
    assert world.scan(after=1.0) == ["Node m", "Node n"]


@pytest.mark.parametrize("ends", ["says less", "gone"])
def test_what_a_file_says_no_more_stays_until_the_file_that_it_went_to_is_left_alone(world: World, ends: str) -> None:
    world.write("a.yaml", node("n"))
    world.write("b.yaml", node("b"))
    world.write("c.yaml", node("c"))
    world.scan()
    if ends == "gone":
        (world.directory / "a.yaml").unlink()
    else:
        world.write("a.yaml", node("other"), fresh=True)
    world.scan()
    world.write("b.yaml", node("n"), fresh=True)  # what it said goes to another file in its turn
    world.scan(after=0.8)
    world.write("c.yaml", node("b"), node("c"), fresh=True)
    assert world.scan(after=0.8) == ["Node b", "Node c", "Node n"]
    assert world.files.unsettled
    assert world.scan(after=0.8)[:3] == ["Node b", "Node c", "Node n"]
    assert world.problems() == []
    assert not world.files.unsettled


# -------------------- after a restart --------------------


def test_a_file_that_is_broken_at_a_restart_is_what_it_was_when_it_was_last_good(world: World) -> None:
    world.write("a.yaml", node("a"), secret("s"), claim("c", volume="v"), volume("v", claim="default/c"), driver())
    world.write("b.yaml", node("b"))
    before = world.scan()
    objects = world.files.objects()[0]
    world.write("a.yaml", text="a: [")
    for _ in range(2):
        world.restart()
        assert world.scan() == before
        assert {ref: entry.item for ref, entry in world.files.objects()[0].items()} == {
            ref: entry.item for ref, entry in objects.items()
        }
        assert world.is_complete()
        (said,) = world.problems()
        assert said.startswith("a.yaml:2: it is not valid YAML")
        assert said.endswith("; its last good version stays")
    world.write("a.yaml", node("new"))
    assert world.scan() == ["Node b", "Node new"]
    assert world.problems() == []


def test_a_file_that_is_not_there_at_a_restart_must_stay_away_to_be_gone(world: World) -> None:
    world.write("a.yaml", node("a"))
    world.write("b.yaml", node("b"))
    world.scan()
    (world.directory / "a.yaml").rename(world.directory / "a~")
    world.restart()
    assert world.scan() == ["Node a", "Node b"]
    (world.directory / "a~").rename(world.directory / "a.yaml")
    assert world.scan(after=0.5) == ["Node a", "Node b"]
    (world.directory / "a.yaml").unlink()
    world.restart()
    world.scan()
    assert world.scan(after=1.0) == ["Node b"]
    world.write("a.yaml", text="a: [")  # what it said once is no more its last good version
    assert world.scan(after=1.0) == ["Node b"]
    world.restart()
    assert world.scan() == ["Node b"]


def test_an_empty_directory_at_a_restart_tells_nobody_anything(world: World) -> None:
    world.write("a.yaml", node("a"))
    world.scan()
    (world.directory / "a.yaml").rename(world.directory.with_name("a.yaml"))
    world.restart()
    for _ in range(3):
        world.scan(after=1.0)
        assert not world.is_complete()
    world.write("b.yaml", node("b"))
    world.scan()
    assert world.scan(after=1.0) == ["Node b"]
    assert world.is_complete()


def test_what_is_kept_is_the_owners_alone_and_written_once(world: World) -> None:
    world.write("a.yaml", secret("s", password="hunter2"))
    world.scan()
    kept = world.state_dir / "a.yaml"
    assert sorted(path.name for path in world.state_dir.iterdir()) == [".complete", ".version", "a.yaml"]
    assert b"hunter2" not in kept.read_bytes()
    assert kept.stat().st_mode & 0o777 == 0o600
    assert world.state_dir.stat().st_mode & 0o777 == 0o700
    inode = kept.stat().st_ino
    world.restart()
    world.scan()
    assert kept.stat().st_ino == inode


def test_the_good_manifests_of_a_newer_hub_are_refused_and_left_as_they_are(world: World) -> None:
    world.write("a.yaml", node("a"))
    world.scan()
    (world.state_dir / ".version").write_text('{"version": 3}')
    before = {path: path.read_bytes() for path in world.state_dir.iterdir()}
    with pytest.raises(NewerState, match=r"was written by a newer hub \(schema 3"):
        world.restart()
    assert {path: path.read_bytes() for path in world.state_dir.iterdir()} == before


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"kind": "List", "items": [{"kind": "Pod"}]}', None])
def test_a_kept_file_that_cannot_be_read_is_none(
    world: World, content: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    world.write("a.yaml", node("a"))
    world.scan()
    kept = world.state_dir / "a.yaml"
    kept.unlink()
    if content is None:
        kept.mkdir()
    else:
        kept.write_bytes(content)
    world.write("a.yaml", text="a: [")
    world.restart()
    assert world.scan() == []
    assert not world.is_complete()
    assert "so the last good version of a.yaml is not known" in caplog.text


def test_what_cannot_be_kept_is_a_problem_until_it_is(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    world.write("a.yaml", node("a"))
    with monkeypatch.context() as broken:
        broken.setattr("os.rename", full)
        assert world.scan() == ["Node a"]
    assert world.is_complete()
    assert world.problems() == [
        (
            "the last good manifests cannot be stored, and a hub that restarts needs them while a manifest is broken: "
            "No space left on device"
        )
    ]
    world.scan()
    assert world.problems() == []
    assert sorted(path.name for path in world.state_dir.iterdir()) == [".complete", ".version", "a.yaml"]


def test_a_file_that_was_added_broken_says_nothing_after_a_restart_too(world: World) -> None:
    world.write("a.yaml", node("a"))
    world.scan()
    world.write("b.yaml", text="b: [")
    world.scan()
    world.restart()
    assert world.scan() == ["Node a"]
    assert world.is_complete()
    (said,) = world.problems()
    assert said.endswith("; no good version of it is known")


def test_a_file_that_comes_with_a_restart_is_waited_for_while_it_may_be_half_written(world: World) -> None:
    world.write("a.yaml", node("a"), node("b"))
    world.scan()
    world.write("a.yaml", node("a"))
    world.write("b.yaml", text="b: [", fresh=True)
    world.restart()
    world.scan()
    assert not world.is_complete()
    world.write("b.yaml", node("b"), fresh=True)
    world.scan(after=0.5)
    assert not world.is_complete()
    assert world.scan(after=1.0) == ["Node a", "Node b"]
    assert world.is_complete()


def test_unless_all_that_was_told_is_kept_a_broken_file_may_have_been_told(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    world.write("a.yaml", node("a"))
    world.scan()
    world.write("b.yaml", node("b"))
    with monkeypatch.context() as broken:
        broken.setattr("os.rename", full)
        assert world.scan() == ["Node a", "Node b"]
    world.write("b.yaml", text="b: [")
    world.restart()
    assert world.scan() == ["Node a"]
    assert not world.is_complete()


def test_a_directory_for_them_that_cannot_be_used_is_the_operators_mistake(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match=r"--state-dir=.*cannot be used"):
        GoodManifests(tmp_path / "file", KEY)


# -------------------- sealed --------------------


def test_the_copies_of_an_earlier_hub_are_sealed_and_count_as_before(world: World) -> None:
    world.write("a.yaml", secret("s", password="hunter2"))
    world.scan()
    plain = KEY.unseal((world.state_dir / "a.yaml").read_bytes(), bound=b"manifest\0a.yaml")
    (world.state_dir / "a.yaml").write_bytes(plain)
    (world.state_dir / ".version").write_text('{"version": 1}')
    world.write("a.yaml", text="a: [")
    world.restart()
    assert b"hunter2" not in (world.state_dir / "a.yaml").read_bytes()
    assert world.scan() == ["Secret default/s"]
    assert '"version": 2' in (world.state_dir / ".version").read_text()


def test_copies_that_cannot_be_sealed_now_count_and_are_sealed_later(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    (world.state_dir / ".version").write_text('{"version": 1}')
    (world.state_dir / "a.yaml").write_bytes(encode_body({"kind": "List", "items": [secret("s", password="hunter2")]}))
    world.write("a.yaml", text="a: [")
    with monkeypatch.context() as broken:
        broken.setattr("os.rename", full)
        world.restart()
        assert world.scan() == ["Secret default/s"]
    assert "are not sealed yet" in caplog.text
    world.write("b.yaml", node("b"))
    world.scan()
    assert b"hunter2" not in (world.state_dir / "a.yaml").read_bytes()


def test_copies_under_another_key_are_named_and_are_usable_when_the_key_is_back(tmp_path: Path, world: World) -> None:
    other = Sealer(b"o" * 32)
    world.write("a.yaml", node("a"))
    world.write("b.yaml", node("b"))
    world.scan()
    files = GoodManifests(world.state_dir, other)
    assert files.problem().startswith("the last good copies of a.yaml, b.yaml in ")
    assert "sealed with another key than the one in use (--seal-key)" in files.problem()
    assert files.recall("a.yaml") is None
    again = GoodManifests(world.state_dir, KEY)
    assert again.problem() == ""
    assert again.recall("a.yaml")


def test_copies_under_another_key_are_made_anew_from_good_manifests(world: World) -> None:
    world.write("a.yaml", node("a"))
    world.write("b.yaml", node("b"))
    world.scan()
    world.write("b.yaml", text="b: [")
    world.files = ManifestFiles(world.directory, kept=GoodManifests(world.state_dir, Sealer(b"o" * 32)))
    world.scan()
    assert not world.is_complete()  # b.yaml is broken, and its copy is not readable
    assert any("the last good copies of a.yaml, b.yaml in" in problem for problem in world.problems())
    world.write("b.yaml", node("b"))
    assert world.scan() == ["Node a", "Node b"]
    assert world.problems() == []


def test_a_copy_under_the_earlier_key_is_sealed_with_the_present_one(world: World) -> None:
    other = Sealer(b"o" * 32)
    world.write("a.yaml", node("a"))
    world.scan()
    files = GoodManifests(world.state_dir, other, earlier=KEY)
    assert files.is_settled
    assert GoodManifests(world.state_dir, other).recall("a.yaml")


def test_a_copy_that_somebody_without_the_key_put_there_does_not_count(world: World) -> None:
    world.write("a.yaml", node("a"))
    world.write("b.yaml", node("b"))
    world.scan()
    (world.state_dir / "a.yaml").write_bytes((world.state_dir / "b.yaml").read_bytes())
    (world.state_dir / "b.yaml").write_bytes(encode_body({"kind": "List", "items": [node("evil")]}))
    files = GoodManifests(world.state_dir, KEY)
    assert files.recall("a.yaml") is None
    assert files.recall("b.yaml") is None


# -------------------- what nobody foresaw --------------------


def test_a_mistake_in_reading_one_file_is_that_files_problem(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    read_objects = manifest_files.read_objects

    def fail_at_a(name: str, data: bytes) -> Any:
        if name == "a.yaml" and b"broken" in data:
            raise KeyError("a bug")
        return read_objects(name, data)

    monkeypatch.setattr(manifest_files, "read_objects", fail_at_a)
    world.write("a.yaml", node("a"))
    world.scan()
    world.write("a.yaml", node("broken"))
    world.write("b.yaml", node("b"))
    for _ in range(2):
        assert world.scan() == ["Node a", "Node b"]
        assert world.problems() == [
            "a.yaml: reading it failed because of a bug in CSI Bridge; its last good version stays"
        ]
    assert [record.exc_info is not None for record in caplog.records] == [True]
