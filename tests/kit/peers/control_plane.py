"""A Kubernetes control plane: etcd, kube-apiserver with RBAC on, kube-controller-manager, maybe a scheduler; no node.

It is ready in a few seconds, listens on loopback alone, and keeps all it writes in one directory.
"""

import base64
import json
import secrets
import ssl
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.kit.deployed import CRDS, Object, objects
from tests.kit.peers.kube_api import KubeApi
from tests.kit.ports import free_ports
from tests.kit.processes import Process, Supervisor, listens_on

_READY_LIMIT_S = 60.0


_FREE_LEASE = {
    "apiVersion": "coordination.k8s.io/v1",
    "kind": "Lease",
    "metadata": {"name": "csi-bridge-hub", "namespace": "csi-bridge"},
    "spec": {"holderIdentity": "", "leaseDurationSeconds": 1},
}
"""The hub's Lease as a hub releases it."""


class Asked(NamedTuple):
    """One request, in the words of RBAC; `resource` with its subresource."""

    verb: str
    group: str
    resource: str
    name: str


class ControlPlane:
    """One cluster's control plane.

    Args:
        peer: finds a peer's binary by name.
        nodes: names of nodes whose kubelets may use it, each with an identity of its own.
        api_flags: further flags of the API server.
        service_accounts: whether pods get tokens of their ServiceAccounts.
        host: where the API server listens.

    Attributes:
        etcd, api_server, controller_manager, scheduler: the processes, for tests that stop or kill one.
    """

    etcd: Process
    api_server: Process
    controller_manager: Process
    scheduler: Process
    api: KubeApi  # what the administrator sees

    def __init__(
        self,
        directory: Path,
        *,
        peer: Callable[[str], Path],
        nodes: Sequence[str] = (),
        api_flags: Sequence[str] = (),
        service_accounts: bool = False,
        host: str = "127.0.0.1",
    ) -> None:
        self.directory = directory  # where its files and logs go
        self._host = host
        self.peer = peer  # finds a peer's binary by name
        self._api_flags = list(api_flags)
        if not service_accounts:
            self._api_flags.append("--disable-admission-plugins=ServiceAccount")
        self._supervisor = Supervisor(directory / "logs")
        self._admin_token = secrets.token_urlsafe(24)
        self._node_tokens = {node: secrets.token_urlsafe(24) for node in nodes}
        self._client_port, self._peer_port, self._secure_port = free_ports(3)

    @property
    def url(self) -> str:
        return f"https://{self._host}:{self._secure_port}"

    @property
    def etcd_url(self) -> str:
        return f"http://127.0.0.1:{self._client_port}"

    @property
    def ca(self) -> Path:
        """The API server's certificate, which it makes at its first start."""
        return self.directory / "apiserver" / "apiserver.crt"

    def start(self) -> None:
        self._write_credentials()
        self._start_etcd()
        self._start_api_server()
        self.api = self._api()
        self.apply(CRDS)
        self._start_controller_manager()

    def start_scheduler(self) -> None:
        """Start a scheduler, for tests that do not say themselves where their pods run."""
        self.scheduler = self._start_client("kube-scheduler")

    def stop(self) -> None:
        if hasattr(self, "api"):
            self.api.close()
        self._supervisor.stop()

    def ready(self) -> bool:
        """Whether the API server says that it can be used."""
        if not self.ca.exists() or not self.ca.read_bytes().rstrip().endswith(b"-----END CERTIFICATE-----"):
            return False  # it is being written
        headers = {"Authorization": f"Bearer {self._admin_token}"}
        request = urllib.request.Request(f"{self.url}/readyz", headers=headers)
        return _answers_ok(request, ssl.create_default_context(cafile=str(self.ca)))

    def kubeconfig(self, user: str, token: str) -> Path:
        authority = base64.b64encode(self.ca.read_bytes()).decode()
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "peers",
            "clusters": [{"name": "peers", "cluster": {"server": self.url, "certificate-authority-data": authority}}],
            "users": [{"name": user, "user": {"token": token}}],
            "contexts": [{"name": "peers", "context": {"cluster": "peers", "user": user}}],
        }
        path = self.directory / f"{user}.kubeconfig"
        path.touch(mode=0o600)
        path.write_text(json.dumps(config))
        return path

    def admin_kubeconfig(self) -> Path:
        """A kubeconfig file for the administrator; never for a process of the project, which has a role of its own."""
        return self.kubeconfig("admin", self._admin_token)

    def node_kubeconfig(self, node: str) -> Path:
        """A kubeconfig file for the kubelet of one of `nodes`, which may see what the Node authorizer allows."""
        return self.kubeconfig(f"node-{node}", self._node_tokens[node])

    def await_kubelet(self, node: str) -> None:
        """Make the Node of a kubelet that is about to start; there may be one.

        One that looks for its CSINode before it has made its Node looks again after 15 s, and then after two minutes.
        """
        self.api.ensure({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}})

    def wait_registered(self, driver: str, node: str) -> None:
        """Wait until the CSINode of a node has a driver."""
        self.api.wait_until(
            "CSINode",
            node,
            lambda it: any(each["name"] == driver for each in it["spec"].get("drivers") or ()),
            what=f"with driver {driver}",
            timeout_s=120.0,
        )

    def service_account_kubeconfig(self, namespace: str, name: str) -> Path:
        """A kubeconfig file for a ServiceAccount that exists, with a token that the API server made.

        The hub's finds a free Lease. Without one, it would wait first: somebody may have deleted it under a hub.
        """
        if name == "csi-bridge-hub":
            self.api.ensure(_FREE_LEASE)
        return self.kubeconfig(f"{namespace}-{name}", self.api.token_for(namespace, name))

    def api_for(self, user: str, group: str) -> KubeApi:
        """What another user may do, by the administrator's impersonation. The caller closes it."""
        return self._api(instead=(user, group))

    def apply(self, what: Path | Iterable[Object]) -> None:
        """Create objects, or what a YAML file or every YAML file of a folder holds; what exists is left as it is.

        Objects without a namespace go to ``default``, as they do with kubectl.
        """
        if isinstance(what, Path):
            files = sorted(what.glob("*.yaml")) if what.is_dir() else [what]
            what = [found for file in files for found in objects(file) if found["kind"] != "Kustomization"]
        for manifest in what:
            metadata = {"namespace": "default", **manifest["metadata"]}
            self.api.ensure({**manifest, "metadata": metadata})

    def asked_by(self, service_account: str, *, since: int = 0) -> list[Asked]:
        """What a ServiceAccount of the project's was allowed to do, the oldest first, after so many others."""
        user = f"system:serviceaccount:csi-bridge:{service_account}"
        text = self._audit_log.read_text() if self._audit_log.exists() else ""
        lines = text.rpartition("\n")[0].splitlines()  # the last one may just be written
        found = [json.loads(line) for line in lines if f'"{user}"' in line]
        return [
            Asked(each["verb"], where.get("apiGroup", ""), _resource(where), where.get("name", ""))
            for each in found
            if each["annotations"].get("authorization.k8s.io/decision") == "allow" and (where := each.get("objectRef"))
        ][since:]

    def new_namespace(self) -> str:
        name = f"t-{uuid.uuid4().hex[:10]}"
        self.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        return name

    def _api(self, *, instead: tuple[str, str] | None = None) -> KubeApi:
        discovery = self.directory / "api-discovery.json"
        return KubeApi(self.url, token=self._admin_token, ca=self.ca, discovery=discovery, instead=instead)

    def _write_credentials(self) -> None:
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        public = key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        tokens = f'{self._admin_token},admin,1,"system:masters"\n'
        for node, token in self._node_tokens.items():
            tokens += f'{token},system:node:{node},{node},"system:nodes"\n'
        for name, content in {"sa.key": private, "sa.pub": public, "tokens.csv": tokens.encode()}.items():
            path = self.directory / name
            path.touch(mode=0o600)
            path.write_bytes(content)

    def _start_etcd(self) -> None:
        command = [
            self.peer("etcd"),
            f"--data-dir={self.directory / 'etcd'}",
            f"--listen-client-urls={self.etcd_url}",
            f"--advertise-client-urls={self.etcd_url}",
            f"--listen-peer-urls=http://127.0.0.1:{self._peer_port}",
            "--unsafe-no-fsync",
        ]
        self.etcd = self._supervisor.start(
            "etcd", command, ready=lambda: listens_on(self._client_port), timeout_s=_READY_LIMIT_S
        )

    def _start_api_server(self) -> None:
        command = [
            self.peer("kube-apiserver"),
            f"--etcd-servers={self.etcd_url}",
            f"--bind-address={self._host}",
            f"--secure-port={self._secure_port}",
            f"--cert-dir={self.ca.parent}",
            f"--service-account-key-file={self.directory / 'sa.pub'}",
            f"--service-account-signing-key-file={self.directory / 'sa.key'}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--token-auth-file={self.directory / 'tokens.csv'}",
            "--authorization-mode=Node,RBAC",
            "--allow-privileged=true",
            "--service-cluster-ip-range=10.96.0.0/16",
            f"--audit-policy-file={self._write_audit_policy()}",
            f"--audit-log-path={self._audit_log}",
            # Pods need no endpoints of this server.
            "--endpoint-reconciler-type=none",
            *self._api_flags,
        ]
        self.api_server = self._supervisor.start("kube-apiserver", command, ready=self.ready, timeout_s=_READY_LIMIT_S)

    @property
    def _audit_log(self) -> Path:
        return self.directory / "audit.log"

    def _write_audit_policy(self) -> Path:
        """What processes of the project's own ask for is noted, without what they say."""
        policy = {
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "omitStages": ["RequestReceived"],
            "rules": [{"level": "Metadata", "userGroups": ["system:serviceaccounts:csi-bridge"]}, {"level": "None"}],
        }
        path = self.directory / "audit-policy.json"
        path.write_text(json.dumps(policy))
        return path

    def _start_controller_manager(self) -> None:
        self.controller_manager = self._start_client(
            "kube-controller-manager",
            f"--service-account-private-key-file={self.directory / 'sa.key'}",
            f"--root-ca-file={self.ca}",
            "--controllers=*,-node-ipam-controller",
        )

    def _start_client(self, name: str, *flags: str) -> Process:
        """Start a component that works on the API server as its administrator."""
        kubeconfig = self.admin_kubeconfig()
        (port,) = free_ports(1)
        command = [
            self.peer(name),
            f"--kubeconfig={kubeconfig}",
            f"--authentication-kubeconfig={kubeconfig}",
            f"--authorization-kubeconfig={kubeconfig}",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            f"--secure-port={port}",
            f"--cert-dir={self.directory / name}",
            *flags,
        ]
        return self._supervisor.start(
            name,
            command,
            ready=lambda: _answers_ok(f"https://127.0.0.1:{port}/healthz", _unverified()),
            timeout_s=_READY_LIMIT_S,
        )


def _resource(where: dict[str, str]) -> str:
    return "/".join(where[part] for part in ("resource", "subresource") if part in where)


def _answers_ok(request: urllib.request.Request | str, context: ssl.SSLContext) -> bool:
    try:
        with urllib.request.urlopen(request, timeout=2.0, context=context) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _unverified() -> ssl.SSLContext:
    # The controller-manager's certificate is its own; the question is only whether it is up.
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
