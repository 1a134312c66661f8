"""The cache of built peers: complete or absent, built once, safe against a killed run and against a second one."""

from __future__ import annotations

import fcntl
import os
import queue
import shutil
import subprocess
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.kit import needs
from tests.peers import build
from tests.peers.build import BuildError, Module

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _cache_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go = shutil.which("go")
    if go is None:
        pytest.skip(needs.GO)
    # Only the peers' cache moves: Go's own would have to compile its library again.
    monkeypatch.setenv("GOCACHE", subprocess.check_output([go, "env", "GOCACHE"], text=True).strip())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def module(tmp_path: Path) -> Module:
    return _module(tmp_path / "source", "package main\n\nfunc main() { println(1) }\n")


def _module(folder: Path, program: str) -> Module:
    folder.mkdir(exist_ok=True)
    (folder / "go.mod").write_text("module example.org/hello\n\ngo 1.26.0\n")
    (folder / "main.go").write_text(program)
    return Module(name="hello", folder=folder, binaries={"hello": "."})


def test_a_built_binary_runs_and_the_second_build_leaves_it_as_it_is(
    module: Module, capsys: pytest.CaptureFixture[str]
) -> None:
    build.build([module])
    binary = module.directory / "hello"
    first = binary.stat()

    assert subprocess.run([binary], capture_output=True, check=True, text=True).stderr == "1\n"
    assert "building hello (1 of 1)" in capsys.readouterr().out

    build.build([module])

    assert (binary.stat().st_ino, binary.stat().st_mtime_ns) == (first.st_ino, first.st_mtime_ns)
    assert "building" not in capsys.readouterr().out


def test_a_binary_called_test_is_made_of_the_packages_tests(module: Module) -> None:
    (module.folder / "main_test.go").write_text(
        'package main\n\nimport "testing"\n\nfunc TestIt(t *testing.T) { println("tested") }\n'
    )
    tests = replace(module, binaries={"hello.test": "."}, static=True)
    build.build([tests])

    run = subprocess.run([tests.directory / "hello.test"], capture_output=True, check=True, text=True)
    assert run.stderr == "tested\n"


def test_what_is_not_usual_is_built_only_by_its_name(module: Module, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "MODULES", (replace(module, usual=False),))

    assert build.main([]) == 0
    assert not module.directory.exists()
    assert build.main(["hello"]) == 0
    assert module.directory.exists()


def test_a_changed_source_is_another_directory(module: Module) -> None:
    changed = _module(module.folder.with_name("changed"), "package main\n\nfunc main() { println(2) }\n")

    assert changed.directory.parent == module.directory.parent == build.cache_directory()
    assert changed.directory != module.directory


def test_a_failed_build_says_what_go_said_and_leaves_nothing(tmp_path: Path) -> None:
    broken = _module(tmp_path / "broken", "package main\n\nfunc main() { nonsense() }\n")

    with pytest.raises(BuildError, match="undefined: nonsense"):
        build.build([broken])

    assert [path.name for path in build.cache_directory().iterdir()] == ["hello.lock"]


def test_what_a_killed_run_left_is_never_found_and_is_removed_by_the_next(module: Module) -> None:
    left_over = build.cache_directory() / ".hello-killed"
    left_over.mkdir(parents=True)
    (left_over / "hello").touch()

    assert not module.directory.exists()
    build.build([module])

    assert not left_over.exists()
    assert (module.directory / "hello").exists()


def test_a_second_run_waits_for_the_first_and_uses_its_work(module: Module, monkeypatch: pytest.MonkeyPatch) -> None:
    said: queue.Queue[str] = queue.Queue()
    monkeypatch.setattr(build, "_say", said.put)
    build.cache_directory().mkdir(parents=True)
    with (build.cache_directory() / "hello.lock").open("w") as first_run:
        fcntl.flock(first_run, fcntl.LOCK_EX)
        second_run = threading.Thread(target=build.build, args=([module],))
        second_run.start()
        assert said.get(timeout=30) == "hello: another run is building it; waiting"
        module.directory.mkdir()
        (module.directory / "hello").touch()
    second_run.join()

    assert not [text for text in said.queue if "building hello" in text]


def test_what_nobody_used_for_a_month_is_removed(module: Module) -> None:
    old = build.cache_directory() / "hello-0123456789abcdef"
    old.mkdir(parents=True)
    os.utime(old, (0, 0))

    build.build([module])

    assert not old.exists()


def test_without_go_the_error_says_what_to_install(module: Module, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")

    with pytest.raises(BuildError, match=r"go is not on PATH: .* install Go 1\.26 or newer"):
        build.build([module])


def test_an_unknown_peer_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(LookupError, match=r"no peer is called 'etcdd'; there are: .*, etcd, "):
        build.find("etcdd")
