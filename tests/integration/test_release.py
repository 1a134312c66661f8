"""`make release`: two runs write the same bytes, and the wheel holds the product alone."""

import hashlib
import json
import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.kit import needs
from tests.peers.build import find

ROOT = Path(__file__).parents[2]


def release(dist: Path, *parts: str, umask: int = 0o022, **settings: str) -> str:
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    if helm := find("helm"):
        env["PATH"] = f"{helm.parent}:{env['PATH']}"
    command = [
        "make",
        "--no-print-directory",
        "release",
        f"DIST={dist}",
        f"PARTS={' '.join(parts)}",
        f"PYTHON={sys.executable}",
    ]
    ended = subprocess.run(
        command, cwd=ROOT, env=env | settings, umask=umask, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


# It installs the tools and, for the SBOM, the product with its dependencies.
@pytest.mark.slow
@pytest.mark.timeout(900)
@needs.skip_without(needs.clone())
def test_two_releases_of_a_commit_are_the_same_files(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    said = release(first, "wheel", "sbom", "chart")
    release(second, "chart", "wheel", umask=0o077, TZ="Asia/Tokyo", SOURCE_DATE_EPOCH="1")

    def digests(dist: Path) -> dict[str, str]:
        return {each.name: hashlib.sha256(each.read_bytes()).hexdigest() for each in dist.iterdir()}

    for dist in (first, second):
        sums = dict(reversed(line.split()) for line in (dist / "SHA256SUMS").read_text().splitlines())
        assert {**sums, "SHA256SUMS": digests(dist)["SHA256SUMS"]} == digests(dist)
    # Installing everything twice for a second SBOM would cost a minute.
    assert {name for name in digests(first) if digests(first)[name] != digests(second).get(name)} == {
        "SHA256SUMS",
        "csi-bridge.cdx.json",
    }

    (wheel,) = first.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    version = wheel.name.split("-")[1]
    assert {name.partition("/")[0] for name in names} == {*packages, f"csi_bridge-{version}.dist-info"}
    assert [name for name in names if "test" in name] == []

    sbom = json.loads((first / "csi-bridge.cdx.json").read_text())
    root = sbom["metadata"]["component"]
    assert (sbom["bomFormat"], root["name"], root["version"]) == ("CycloneDX", "csi-bridge", version)
    assert {"cryptography", "grpcio", "kubernetes"} < {each["name"] for each in sbom["components"]}

    if find("helm"):
        with tarfile.open(first / f"csi-bridge-{version}.tgz") as archive:
            assert len({member.mtime for member in archive}) == 1
    else:
        assert "left out: the chart: helm is not on PATH" in said
