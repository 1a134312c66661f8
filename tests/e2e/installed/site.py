"""A site: a cluster with two nodes for the cloud and two edge nodes, and somebody's copy of the project's folder."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.installed import images
from tests.e2e.installed.nodes import KubeletNode, OwnNode
from tests.kit.deployed import CRDS, DEPLOY, OURS, ROOT, WITH_FILES, charted, containers, objects
from tests.kit.peers.control_plane import ControlPlane
from tests.kit.peers.sidecars import Sidecars
from tests.kit.processes import Supervisor
from tests.kit.waiting import wait_for

Object = dict[str, Any]

_DNS = "10.96.0.10"
_API_SERVER = "10.250.0.254"
_ADDRESSES = {"cloud-1": "10.250.0.1", "edge-1": "10.250.0.2", "cloud-2": "10.250.0.3"}
_REGISTRY = "registry.your.company/csi-bridge"
_SANDBOX = "csi-bridge.test/sandbox:1"
_LIMIT_S = 120.0
_BLOCK = re.compile("^```(\\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Page:
    text: str

    def under(self, heading: str, *, kind: str = "sh") -> list[str]:
        """The blocks of a kind between a heading and the next one of its level or above it."""
        _, _, rest = self.text.partition(f"\n{heading}")
        assert rest, f"no heading {heading}"
        level = len(heading.partition(" ")[0])
        rest = re.split(f"^#{{1,{level}}} ", rest, maxsplit=1, flags=re.MULTILINE)[0]
        return [text for found, text in _BLOCK.findall(rest) if found == kind]

    def plain(self, words: str) -> list[str]:
        """The one block that is not typed as it stands on every cluster, by words in it."""
        found = [text for kind, text in _BLOCK.findall(self.text) if not kind and words in text]
        assert len(found) == 1, f"{len(found)} blocks with {words}"
        return found

    def command(self, words: str) -> str:
        """The command of a block that also shows its answer, by words in it."""
        (block,) = self.plain(words)
        return block.removeprefix("$ ").partition("\n{")[0]


class Site:
    """See the module.

    Args:
        directory: for everything but logs; its path must be short.
        logs: for the logs of all processes but the control plane's.
        peer: finds a peer's binary or published file by name.
        tool: finds a program of Debian's packages by name.
    """

    static: str  # the id of the volume that was made by hand

    def __init__(
        self, directory: Path, logs: Path, *, peer: Callable[[str], Path], tool: Callable[[str], Path]
    ) -> None:
        self._directory, self._logs, self._peer, self._tool = directory, logs, peer, tool
        self._supervisor = Supervisor(logs / "cluster")
        plane = directory / "plane"
        plane.mkdir()
        self._plane = ControlPlane(
            plane,
            peer=peer,
            nodes=list(_ADDRESSES),
            service_accounts=True,
            # There is no route by which it could find an address of its own.
            api_flags=["--kubelet-preferred-address-types=InternalIP", f"--advertise-address={_API_SERVER}"],
        )
        self._nodes: dict[str, KubeletNode | OwnNode] = {}
        self._folder = directory / "project"

    # ---- starting and stopping ---------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the cluster, as its owner has it before the bridge comes."""
        self._copy_project()
        archive = self._write_images()
        self._plane.start()
        self._kubeconfig = self._plane.admin_kubeconfig()
        self.kubectl(
            "delete", "-f", str(CRDS)
        )  # the control plane's own; Helm takes over no object that it has not made
        self._plane.start_scheduler()
        self._start_services()
        cluster = Sidecars(control_plane=self._plane, supervisor=self._supervisor, peer=self._peer)
        cluster.install_snapshot_kinds()
        cluster.start_snapshot_controller()
        for name, address in _ADDRESSES.items():
            self._plane.await_kubelet(name)
            node = KubeletNode(
                name, self._directory / name, self._logs / name, dns=_DNS, address=address, peer=self._peer,
                tool=self._tool, kubeconfig=self._plane.node_kubeconfig(name), image=archive, sandbox=_SANDBOX,
            )  # fmt: skip
            self._nodes[name] = node
            node.boot()
            self._answer_for_the_registry(node.digests)
        own = OwnNode("edge-2", self._directory / "edge-2", self._logs / "edge-2", dns=_DNS)
        self._nodes["edge-2"] = own
        own.boot()

    def stop(self) -> None:
        for node in reversed(self._nodes.values()):
            node.stop()
        self._supervisor.stop()
        self._plane.stop()

    def _copy_project(self) -> None:
        shutil.copytree(DEPLOY, self._folder / "deploy")
        (self._folder / "bin").mkdir()
        for name in ("kubectl", "helm"):
            program = self._folder / "bin" / name
            program.write_text(f'#!/bin/sh\nexec {self._peer(name)} "$@"\n')
            program.chmod(0o755)
        self.replace("deploy/examples/driver/node.yaml", OURS, f"{_REGISTRY}/")

    def _answer_for_the_registry(self, digests: dict[str, str]) -> None:
        """Let `docker buildx imagetools inspect` print the digests of the nodes' images: there is no registry."""
        known = self._folder / "digests"
        known.write_text("".join(f"{name} {digest}\n" for name, digest in digests.items()))
        docker = self._folder / "bin/docker"
        docker.write_text(f'#!/bin/sh\nfor image; do :; done\nsed -n "s|^$image ||p" {known}\n')
        docker.chmod(0o755)

    def _write_images(self) -> Path:
        for name in ("ptp", "host-local"):
            self._tool(name)
        bin_ = f"{images.OPT}/bin"
        ours = {"cloud": "csi-bridge", "edge": "csi-bridge", "dirdriver": "dirdriver"}
        programs = {"registrar": self._peer("registrar")}
        made = {f"{_REGISTRY}/{name}:0.1.0": [f"{bin_}/{command}"] for name, command in ours.items()}
        made |= {_SANDBOX: ["/bin/sh", "-c", "trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done"]}
        made_by_chart = charted({**WITH_FILES, "images": {"registry": _REGISTRY}, "audit": {"enabled": True}})
        examples = [it for path in sorted((DEPLOY / "examples").rglob("*.yaml")) for it in objects(path)]
        for container in containers([*made_by_chart, *examples]):
            image, name = container["image"], container["name"]
            if name == "node-driver-registrar":
                made[image] = ["/registrar"]
            elif name == "liveness-probe":
                made[image] = [f"{bin_}/python", "/livenessprobe.py"]
                programs["livenessprobe.py"] = ROOT / "tests/e2e/installed/livenessprobe.py"
            elif name.startswith("csi-"):
                made[image] = [f"/{name}"]
                programs[name] = self._peer(name)
            elif image.rpartition("/")[2].startswith("kubectl:"):
                made[image] = ["/kubectl"]
                programs["kubectl"] = self._peer("kubectl")
            elif "busybox" in image:
                made[image] = []
        archive = self._directory / "images.tar"
        images.write_archive(archive, programs=programs, busybox=self._tool("busybox"), images=made)
        return archive

    def _start_services(self) -> None:
        names = ["hub.example=csi-bridge-edges.csi-bridge"]
        names += [f"hub-{number}.example=csi-bridge-hub-{number}.csi-bridge" for number in range(2)]
        module = [sys.executable, "-m", "tests.e2e.installed.services"]
        port = self._plane.url.rpartition(":")[2]
        command = [*module, self._kubeconfig, self._peer("kubectl"), _DNS, port, *names]
        self._supervisor.start("services", command)

    # ---- what somebody types -----------------------------------------------------------------------------------------

    def page(self, name: str) -> Page:
        return Page((ROOT / f"docs/{name}.md").read_text())

    def type(self, blocks: list[str], *, strict: bool = True) -> str:
        """Type blocks of shell in the folder; what they said. Strict: each command must end well."""
        return self.shell("\n".join(["set -e" if strict else "", *blocks]), strict=strict)

    def shell(self, script: str, *, strict: bool = True) -> str:
        environment = {
            **os.environ,
            "PATH": f"{self._folder / 'bin'}:{os.environ['PATH']}",
            "KUBECONFIG": str(self._kubeconfig),
        }
        done = subprocess.run(
            ["sh", "-c", script], cwd=self._folder, env=environment, capture_output=True, text=True, check=False,
            timeout=_LIMIT_S,
        )  # fmt: skip
        assert done.returncode == 0 or not strict, f"{script}\n{done.stdout}\n{done.stderr}\n{self.tell()}"
        return done.stdout

    def kubectl(self, *words: str) -> str:
        return self.shell('exec kubectl "$@"'.replace('"$@"', " ".join(f"'{it}'" for it in words)))

    def helm(self, verb: str, *flags: str) -> None:
        """Install or upgrade the release with all values of the page."""
        values = " ".join(f"--values my-cluster/{name}.yaml" for name in ("values", "digests", "way-in"))
        self.shell(f"helm {verb} csi-bridge deploy/chart --namespace csi-bridge {values} {' '.join(flags)}")

    def get(self, kind: str, name: str) -> Object:
        found: Object = json.loads(self.kubectl("get", kind, name, "--output=json"))
        return found

    def of_bridge(self, what: str, path: str) -> str:
        """A field of one of the bridge's objects; empty if there is none."""
        return self.kubectl("-n", "csi-bridge", "get", what, "--ignore-not-found", f"--output=jsonpath={{{path}}}")

    def wait_ready(self, namespace: str, pod: str) -> None:
        def look() -> bool:
            ready = '--output=jsonpath={.status.conditions[?(@.type=="Ready")].status}'
            return self.kubectl("-n", namespace, "get", "pod", pod, "--ignore-not-found", ready) == "True"

        wait_for(look, what=f"ready pod {pod}", timeout_s=_LIMIT_S, instead=self.tell)

    def log(self, pod: str) -> list[str]:
        """The lines that an example's pod has written into its volume."""
        return self.kubectl("exec", pod, "--", "cat", "/data/log").splitlines()

    def write(self, file: str, text: str) -> None:
        (self._folder / file).write_text(text)

    def replace(self, file: str, old: str, new: str) -> None:
        path = self._folder / file
        text = path.read_text()
        assert text.count(old) == 1
        path.write_text(text.replace(old, new))

    # ---- on the nodes ------------------------------------------------------------------------------------------------

    def token(self, node: str) -> str:
        """Make a token in the hub's pod, once it leads."""
        (command,) = self.page("install").plain("csi-bridge token create --node edge-1")
        script = command.replace("edge-1", node)
        return wait_for(
            lambda: self.shell(script, strict=False).strip(), what="token", timeout_s=_LIMIT_S, instead=self.tell
        )

    def join(self, node: str) -> None:
        token = self.token(node)
        self._nodes[node].run("/opt/csi-bridge/bin/csi-bridge", "edge", "join", "--node", node, token)

    def start_agent(self, name: str) -> None:
        """What install.md says to do on a node without a kubelet, once the wheel is installed."""
        node = self._own(name)
        settings = (self._folder / "deploy/edge/edge.env").read_text()
        settings = re.sub("^.*_(NODE|HUB|TLS_.*)=.*\n", "", settings, flags=re.MULTILINE)
        settings = re.sub("^#(.*_DRIVER=).*", r"\1unix:///run/dirdriver.sock", settings, flags=re.MULTILINE)
        node.path("etc/csi-bridge").mkdir(exist_ok=True)
        node.path("etc/csi-bridge/edge.env").write_text(settings)
        unit = self._folder / "deploy/edge/csi-bridge-edge.service"
        node.path("etc/systemd/system").mkdir(parents=True, exist_ok=True)
        shutil.copy(unit, node.path("etc/systemd/system"))
        self._agent = node.start_unit("csi-bridge-edge")

    def start_driver(self, name: str) -> None:
        """Start the example driver on a node without a kubelet, as first-volume.md says."""
        (block,) = self.page("first-volume").plain("/opt/csi-bridge/bin/dirdriver")
        _, _, command = block.partition("\n")
        words = command.replace("\\\n", " ").split()
        self._driver = self._own(name).supervisor.start("dirdriver", words)

    def stop_agent(self, name: str) -> None:
        """Stop agent and driver there, once the agent has no volumes."""
        show = ("/opt/csi-bridge/bin/csi-bridge", "edge", "volumes", "-o", "json")
        wait_for(
            lambda: not json.loads(self._own(name).run(*show))["volumes"], what="node without volumes", timeout_s=60.0
        )
        self._agent.stop()
        self._driver.stop()

    def _own(self, name: str) -> OwnNode:
        node = self._nodes[name]
        assert isinstance(node, OwnNode)
        return node

    # ---- how it stands -----------------------------------------------------------------------------------------------

    def left_over(self) -> list[str]:
        """What is left of the bridge in the cluster, and of volumes on the nodes."""
        kinds = (
            "namespaces,nodes,persistentvolumes,storageclasses,csidrivers,volumeattachments,clusterroles,"
            "clusterrolebindings,volumesnapshotclasses,volumesnapshotcontents"
        )
        found = json.loads(self.kubectl("get", kinds, "--output=json"))["items"]
        of_all = json.loads(self.kubectl("get", "pods,leases,roles,rolebindings", "-A", "--output=json"))["items"]
        left = []
        for it in (*found, *of_all):
            meta = it["metadata"]
            labels = " ".join(meta.get("labels", {})) if it["kind"] == "Node" else ""
            about = f"{it['kind']} {meta.get('namespace', '')} {meta['name']} {labels}"
            if re.search("csi-bridge|dirdriver|edge-2|Volume  (pvc-|static )", about):
                left.append(about)
        for node in self._nodes.values():
            left += [f"{node.name}: {it}" for it in node.machine.mounts(Path("/var/lib/kubelet/pods")) if "csi" in it]
            volumes = node.path("var/lib/dirdriver/volumes")
            left += [str(it) for it in volumes.iterdir()] if volumes.exists() else []
        return left

    def tell(self) -> str:
        kubectl = f"{self._peer('kubectl')} --kubeconfig={self._kubeconfig}"
        looks = (
            "get pods,pvc,pv,nodes -A -o wide",
            "get events -A --sort-by=.lastTimestamp",
            "-n csi-bridge logs csi-bridge-hub-0 --tail=15",
            "-n csi-bridge logs csi-bridge-driver-0 --all-containers --tail=15 --prefix",
            "-n csi-bridge-edge logs ds/csi-bridge-edge --tail=15",
            "-n dirdriver logs ds/dirdriver --all-containers --tail=15 --prefix",
        )
        script = "; ".join(f"{kubectl} {it} 2>&1 | tail -n 60" for it in looks)
        return subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False).stdout
