"""The cache of built peers: complete or absent, built once, safe against a killed run and against a second one."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.kit import needs
from tests.peers import build
from tests.peers.build import Module

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
