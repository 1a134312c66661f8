"""The real peers, built once with Go: etcd, Kubernetes, the stock CSI sidecars, csi-sanity, Helm, the load generator.

Rules of the cache:

* It lies outside the tree: ``$XDG_CACHE_HOME/csi-bridge/peers`` (``~/.cache`` by default).
* One directory for each Go module, named by a hash of all that decides what the binaries are. A directory that exists
  is complete: it was built under another name and then renamed.
* One build of a module at a time on a machine: a second run waits for the lock and finds the work done.
* What nobody used for a month is removed at the next build.

``make peers`` runs this file, which builds the usual modules; ``python tests/peers/build.py upstream agnhost`` builds
those that it names; the tests ask `find`.

With ``CSI_BRIDGE_KUBERNETES=v1.33.13`` the cluster's programs are of that version (`KUBERNETES`, the module "cluster").
All other peers stay as they are.
"""

import contextlib
import dataclasses
import fcntl
import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
_UNUSED_LIMIT_S = 30 * 24 * 3600
_KUBERNETES_VERSION = "v1.36.3"
KUBERNETES = os.environ.get("CSI_BRIDGE_KUBERNETES") or _KUBERNETES_VERSION
"""The version of the cluster's programs."""
_SIDECARS = "github.com/kubernetes-csi"
_SNAPSHOTTER = f"{_SIDECARS}/external-snapshotter/v8"


class BuildError(Exception):
    """A peer could not be built; the message says which, and what Go said."""


@dataclass(frozen=True, kw_only=True)
class Module:
    """One Go module and the binaries made from it."""

    name: str  # what the module is called on the command line and in the cache
    folder: Path  # where its go.mod lies
    # Name of each binary, and the Go package it is made from; one whose name ends in ``.test``, as Go names them, is
    # made of the package's tests.
    binaries: Mapping[str, str]
    # Name of each file or folder that is copied from a required module as it was published, and (module, path in it).
    published: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    ldflags: str = "-s -w"  # what the Go linker is given
    # Whether the binaries need no library of the system's, so that one can be all there is in an image.
    static: bool = False
    usual: bool = True  # whether it is built where no module is named
    # A version of Kubernetes: the module is made of that version's own requirements, not of the folder.
    of_kubernetes: str = ""

    @functools.cached_property
    def directory(self) -> Path:
        digest = hashlib.sha256(self.ldflags.encode())
        digest.update(repr(sorted(self.binaries.items()) + sorted(self.published.items())).encode())
        if self.of_kubernetes:
            return cache_directory() / f"{self.name}-{self.of_kubernetes}-{digest.hexdigest()[:16]}"
        for path in sorted([*self.folder.glob("go.*"), *self.folder.rglob("*.go")]):
            digest.update(f"{path.relative_to(self.folder)}\n".encode() + path.read_bytes())
        return cache_directory() / f"{self.name}-{digest.hexdigest()[:16]}"


_KUBERNETES = _ROOT / "tests/peers/go/kubernetes"
_KUBERNETES_LDFLAGS = "-s -w -X k8s.io/component-base/version.gitVersion="
"""Kubernetes' programs refuse to work without a version of their own, which follows."""

_CLUSTER = {
    "etcd": "go.etcd.io/etcd/server/v3",
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
    "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler",
    "kubelet": "k8s.io/kubernetes/cmd/kubelet",
}
"""The programs of a cluster, and the Go packages that they are made from."""

MODULES = (
    Module(
        name="loadgen",
        folder=_ROOT / "bench/loadgen",
        binaries={"loadgen": "."},
    ),
    Module(
        name="sidecars",
        folder=_ROOT / "tests/peers/go/sidecars",
        binaries={
            "csi-sanity": f"{_SIDECARS}/csi-test/v5/cmd/csi-sanity",
            "csi-provisioner": f"{_SIDECARS}/external-provisioner/v6/cmd/csi-provisioner",
            "csi-attacher": f"{_SIDECARS}/external-attacher/v4/cmd/csi-attacher",
            "csi-resizer": f"{_SIDECARS}/external-resizer/v2/cmd/csi-resizer",
            "csi-snapshotter": f"{_SNAPSHOTTER}/cmd/csi-snapshotter",
            "snapshot-controller": f"{_SNAPSHOTTER}/cmd/snapshot-controller",
        },
        published={
            "csi.proto": ("github.com/container-storage-interface/spec", "csi.proto"),
            "snapshot-crds": (f"{_SIDECARS}/external-snapshotter/client/v8", "config/crd"),
            "csi-provisioner-rbac.yaml": (f"{_SIDECARS}/external-provisioner/v6", "deploy/kubernetes/rbac.yaml"),
            "csi-attacher-rbac.yaml": (f"{_SIDECARS}/external-attacher/v4", "deploy/kubernetes/rbac.yaml"),
            "csi-resizer-rbac.yaml": (f"{_SIDECARS}/external-resizer/v2", "deploy/kubernetes/rbac.yaml"),
            "csi-snapshotter-rbac.yaml": (
                _SNAPSHOTTER,
                "deploy/kubernetes/csi-snapshotter/rbac-csi-snapshotter.yaml",
            ),
            "snapshot-controller-rbac.yaml": (
                _SNAPSHOTTER,
                "deploy/kubernetes/snapshot-controller/rbac-snapshot-controller.yaml",
            ),
        },
    ),
    Module(
        name="kubernetes",
        folder=_KUBERNETES,
        binaries={
            "mockdriver": "./mockdriver",
            "fakeruntime": "./fakeruntime",
            "registrar": "./registrar",
            **_CLUSTER,
            "kubectl": "k8s.io/kubernetes/cmd/kubectl",
        },
        ldflags=_KUBERNETES_LDFLAGS + _KUBERNETES_VERSION,
    ),
    Module(
        name="helm",
        folder=_ROOT / "tests/peers/go/helm",
        binaries={
            "helm": "helm.sh/helm/v4/cmd/helm",
            "promtool": "github.com/prometheus/prometheus/cmd/promtool",
        },
        # Helm holds itself for a version of its own, by which a chart may refuse it.
        ldflags="-s -w -X helm.sh/helm/v4/internal/version.version=v4.3.2",
    ),
    Module(
        name="upstream",
        folder=_KUBERNETES,
        binaries={
            "e2e.test": "k8s.io/kubernetes/test/e2e",
            "ginkgo": "github.com/onsi/ginkgo/v2/ginkgo",
        },
        ldflags=_KUBERNETES_LDFLAGS + _KUBERNETES_VERSION,
        usual=False,
    ),
    # Apart from the rest, which takes half as long where it can share what "kubernetes" compiled.
    Module(
        name="agnhost",
        folder=_KUBERNETES,
        binaries={"agnhost": "k8s.io/kubernetes/test/images/agnhost"},
        static=True,
        usual=False,
    ),
)
if KUBERNETES != _KUBERNETES_VERSION:
    # The first, because `module_of` takes the first that has a program.
    MODULES = (
        Module(
            name="cluster",
            folder=_KUBERNETES,
            binaries=_CLUSTER,
            ldflags=_KUBERNETES_LDFLAGS + KUBERNETES,
            of_kubernetes=KUBERNETES,
        ),
        *MODULES,
    )

ON_PATH = frozenset(
    {
        "hostpathplugin",
        "csi-external-health-monitor-controller",
        "csi-node-driver-registrar",
        "csi-snapshot-metadata",
        "snapshot-metadata-lister",
    }
)
"""Peers that no module proxy serves: used where somebody has put them on PATH."""


def cache_directory() -> Path:
    """Where all peers are kept, outside the tree."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home) / "csi-bridge" / "peers"


def find(name: str) -> Path | None:
    """A peer's binary or published file, or None where it is not built (or, for `ON_PATH`, not installed)."""
    if name in ON_PATH:
        found = shutil.which(name)
        return Path(found) if found else None
    path = module_of(name).directory / name
    return path if path.exists() else None


def module_of(name: str) -> Module:
    """The module that a binary or a published file comes from.

    Raises:
        LookupError: no module has it.
    """
    for module in MODULES:
        if name in module.binaries or name in module.published:
            return module
    known = ", ".join(sorted(ON_PATH.union(*(set(module.binaries) | set(module.published) for module in MODULES))))
    raise LookupError(f"no peer is called {name!r}; there are: {known}")


def build(modules: Sequence[Module]) -> None:
    """Build what is missing of these modules, with a progress line for each binary on standard output.

    Raises:
        BuildError: Go is missing, or refuses a package.
    """
    for module in modules:
        with _locked(module):
            if module.directory.exists():
                os.utime(module.directory)
                _say(f"{module.name}: in {module.directory}")
                continue
            _build_one(module)
            _remove_unused(module)


def _build_one(module: Module) -> None:
    go = shutil.which("go")
    if go is None:
        raise BuildError("go is not on PATH: the peers are built from Go modules; install Go 1.26 or newer")
    began, directory = time.monotonic(), module.directory
    for left_over in cache_directory().glob(f".{module.name}-*"):
        shutil.rmtree(left_over, ignore_errors=True)
    work = Path(tempfile.mkdtemp(prefix=f".{module.name}-", dir=cache_directory()))
    try:
        if module.of_kubernetes:
            module = _with_its_own_requirements(go, module, work / "source")
        for number, (binary, package) in enumerate(module.binaries.items(), start=1):
            _say(f"{module.name}: building {binary} ({number} of {len(module.binaries)})")
            _compile(go, module, package, work / binary)
        for name, (source, path) in module.published.items():
            _copy(_folder(go, module, source) / path, work / name)
        work.chmod(0o755)
        work.rename(directory)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    _say(f"{module.name}: built in {time.monotonic() - began:.0f} s, in {directory}")


def _with_its_own_requirements(go: str, module: Module, folder: Path) -> Module:
    """The module in a folder with a go.mod of its own: all other modules have the versions that Kubernetes requires."""
    source = f"k8s.io/kubernetes@{module.of_kubernetes}"
    said = Path(json.loads(_go(module, go, "mod", "download", "-json", source))["GoMod"]).read_text()
    # What Kubernetes replaces with its own staging directories is published under v0 versions.
    version = module.of_kubernetes.replace("v1.", "v0.", 1)
    staged = re.findall(r"^\s(k8s\.io/\S+) => \./staging/", said, re.MULTILINE)
    lines = [
        "module csi-bridge.io/tests/peers/cluster",
        *re.findall(r"^(?:go|godebug) .+$", said, re.MULTILINE),
        *(f"tool {package}" for package in module.binaries.values()),
        f"require k8s.io/kubernetes {module.of_kubernetes}",
        *(f"replace {name} => {name} {version}" for name in staged),
    ]
    folder.mkdir()
    (folder / "go.mod").write_text("\n".join(lines) + "\n")
    made = dataclasses.replace(module, folder=folder)
    _go(made, go, "mod", "tidy")
    return made


def _compile(go: str, module: Module, package: str, output: Path) -> None:
    # The tree may be a git checkout with an owner that git distrusts: the binaries do not need its version.
    flags = ["-buildvcs=false", "-trimpath", "-mod=readonly", f"-ldflags={module.ldflags}"]
    verb = ["test", "-c"] if output.suffix == ".test" else ["build"]
    _go(module, go, *verb, *flags, "-o", str(output), package)


def _folder(go: str, module: Module, source: str) -> Path:
    return Path(json.loads(_go(module, go, "mod", "download", "-json", source))["Dir"])


def _copy(source: Path, target: Path) -> None:
    # Go's module cache is read-only, files and folders; a copy must be one that can be removed.
    if source.is_dir():
        shutil.copytree(source, target, copy_function=shutil.copyfile)
        target.chmod(0o755)
    else:
        shutil.copyfile(source, target)


def _go(module: Module, *command: str) -> str:
    # Somebody's own flags or workspace would make other binaries under the same hash.
    environment = {key: value for key, value in os.environ.items() if key not in {"GOFLAGS", "GOWORK"}}
    if module.static:
        environment["CGO_ENABLED"] = "0"
    done = subprocess.run(
        command,
        cwd=module.folder,
        env={**environment, "GOWORK": "off"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if not line.startswith("go: downloading")]
        raise BuildError(f"{' '.join(command[1:])} in {module.folder} failed:\n" + "\n".join(said[-40:]))
    return done.stdout


@contextlib.contextmanager
def _locked(module: Module) -> Iterator[None]:
    """Hold the module's lock, which the kernel drops with the process, however that ends."""
    cache_directory().mkdir(parents=True, exist_ok=True)
    with (cache_directory() / f"{module.name}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say(f"{module.name}: another run is building it; waiting")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _remove_unused(module: Module) -> None:
    for directory in cache_directory().glob(f"{module.name}-*"):
        if time.time() - directory.stat().st_mtime > _UNUSED_LIMIT_S:
            shutil.rmtree(directory, ignore_errors=True)


def _say(text: str) -> None:
    print(f"peers: {text}", flush=True)  # noqa: T201  this file is also a command


def main(arguments: Sequence[str]) -> int:
    """Build the usual modules, or the named ones."""
    known = {module.name: module for module in MODULES}
    unknown = [name for name in arguments if name not in known]
    if unknown:
        _say(f"no module is called {unknown[0]!r}; there are: {', '.join(known)}")
        return 2
    try:
        build([known[name] for name in arguments] or [module for module in MODULES if module.usual])
    except BuildError as error:
        _say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
