"""The release: the files that belong to a version, in one directory. `make release` runs this.

Rules:
* Everything is made from the last commit, in a fresh directory. Changes that are not committed are left out.
* Wheel, SBOM and chart depend on the commit and on the pinned tools alone (release-tools.txt, Helm): two runs write the
  same bytes. Times in them are the commit's (SOURCE_DATE_EPOCH).
* The SBOM lists the Python packages of an environment in which the wheel was installed, and has run.
* A part that cannot be made here is left out, and the last lines of the output say which, and why.
"""

import argparse
import hashlib
import io
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SUMS = "SHA256SUMS"
SBOM = "csi-bridge.cdx.json"
EXTRAS = "cloud,demo"
"""Each extra that an image installs: the SBOM has the packages of all images."""
PARTS = ("wheel", "sbom", "chart", "images")
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


class Release:
    """The files of one version, as they are made."""

    def __init__(self, source: Path, dist: Path, *, epoch: str) -> None:
        self._dist = dist
        self.left_out: list[str] = []
        self._source = source
        (said,) = re.findall(r'^VERSION = "(.+?)"', (source / "common/observe/version.py").read_text(), re.MULTILINE)
        self._version = said
        # The tools take times from this variable, and must find no setting of the caller's.
        self._env = {**os.environ, "SOURCE_DATE_EPOCH": epoch, "PYTHONHASHSEED": "0"}
        self._env.pop("PYTHONPATH", None)

    def make(self, parts: list[str]) -> None:
        for part in parts:
            getattr(self, f"make_{part}")()
        self._sum()

    def make_wheel(self) -> None:
        self._run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", self._dist)

    def make_sbom(self) -> None:
        (wheel,) = self._dist.glob("*.whl")
        with tempfile.TemporaryDirectory() as name:
            python = Path(name, "bin/python")
            self._run(sys.executable, "-m", "venv", "--without-pip", name)
            pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--disable-pip-version-check")
            self._run(*pip, "--no-compile", "--constraint", self._source / "constraints.txt", f"{wheel}[{EXTRAS}]")
            said = self._run(python.with_name("csi-bridge"), "--version").split()[-1]
            if said != self._version:
                raise SystemExit(f"{wheel.name} says that its version is {said}")
            # The tool takes no dynamic version.
            project = (self._source / "pyproject.toml").read_text()
            named = Path(name, "pyproject.toml")
            named.write_text(project.replace('dynamic = ["version"]', f'version = "{said}"'))
            self._run(
                *(sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible", "--validate"),
                *("--pyproject", named, "--output-file", self._dist / SBOM, python),
            )

    def make_chart(self) -> None:
        if helm := shutil.which("helm"):
            self._run(helm, "package", "deploy/chart", "--destination", self._dist)
        else:
            self.left_out.append("the chart: helm is not on PATH; install Helm 4")

    def make_images(self) -> None:
        if shutil.which("buildah"):
            archive = f"csi-bridge-images-{self._version}-{ARCHITECTURES[platform.machine()]}.tar"
            self._run(self._source / "deploy/images/build.sh", self._dist / archive)
        else:
            self.left_out.append("the images: buildah is not on PATH; install it (Debian's package has its name)")

    def _sum(self) -> None:
        lines = []
        for path in sorted(self._dist.iterdir()):
            with path.open("rb") as file:
                lines.append(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {path.name}\n")
        (self._dist / SUMS).write_text("".join(lines))

    def _run(self, *command: str | Path) -> str:
        ended = subprocess.run(
            command,
            cwd=self._source,
            env=self._env,
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            check=False,
            text=True,
        )
        if ended.returncode:
            raise SystemExit(f"{' '.join(map(str, command))} ended with {ended.returncode}: {ended.stdout}")
        return ended.stdout


def git(*words: str) -> bytes:
    # The tree may have an owner that git distrusts, as in a container.
    return subprocess.run(
        ["git", "-c", f"safe.directory={ROOT}", *words], cwd=ROOT, stdout=subprocess.PIPE, check=True
    ).stdout


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the release of the last commit, and its checksums.")
    parser.add_argument("dist", type=Path, help="directory; an earlier release in it is replaced")
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; all, if none is named")
    given = parser.parse_args()
    if unknown := set(given.parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}; there are: {', '.join(PARTS)}")
    # The SBOM is made from the wheel.
    parts = [part for part in PARTS if part in (given.parts or PARTS) or (part == "wheel" and "sbom" in given.parts)]
    dist = given.dist.resolve()
    if dist.exists() and any(dist.iterdir()) and not (dist / SUMS).exists():
        raise SystemExit(f"{dist} has files that are no release: name another directory, or remove it")
    shutil.rmtree(dist, ignore_errors=True)
    dist.mkdir(parents=True)
    if git("status", "--porcelain"):
        print("changes that are not committed are left out")
    with tempfile.TemporaryDirectory() as name:
        with tarfile.open(fileobj=io.BytesIO(git("archive", "HEAD"))) as archive:
            archive.extractall(name, filter="data")
        release = Release(Path(name), dist, epoch=git("log", "-1", "--format=%ct").decode().strip())
        release.make(parts)
    print((dist / SUMS).read_text(), end="")
    for each in release.left_out:
        print(f"left out: {each}")


if __name__ == "__main__":
    main()
