"""The hub's settings."""

import grp
from dataclasses import dataclass
from pathlib import Path

from cloud.node_marks import AGENT, EDGE, Labels, Taints, labels, taints
from common.endpoint import is_loopback
from common.link_settings import LinkSettings
from common.parsers import HostPort, bounded, count, host_port, path, unix_path, words
from common.settings import setting

_LARGEST_GID = 2**32 - 2
"""`gid_t` has 32 bits, and its highest value means "leave it" (chown(2))."""


@dataclass(frozen=True, kw_only=True)
class HubSettings(LinkSettings):
    """`csi-bridge hub`."""

    command = "hub"

    name: str = setting("hub", parse=words, help="Name that the hub tells its peers.")
    uds: Path = setting(
        "unix:///var/lib/kubeedge/kubeedge.sock",
        parse=unix_path,
        help="UNIX socket for proxy drivers and operators on this host. The default is KubeEdge's path.",
    )
    uds_group: str | None = setting(
        None, parse=words, help="Group of the UNIX socket, whose mode is then 0660 instead of 0600."
    )
    uds_allow_uid: tuple[int, ...] = setting(
        (),
        parse=count,
        repeatable=True,
        unit="uid",
        help="User id that may connect to the UNIX socket. Needs --uds-group.",
    )
    listen: HostPort | None = setting(
        None, parse=host_port, help="Address for edge agents, and for proxy drivers on other hosts (wss)."
    )
    state_dir: Path = setting(
        "/var/lib/csi-bridge/hub",
        parse=path,
        help="Directory for the hub's records of nodes and volumes. Its disk must outlive the hub. One hub uses it.",
    )
    manifests: Path | None = setting(
        None,
        parse=path,
        help="Directory of YAML with the pods, claims and volumes of the edge nodes, for sites without Kubernetes.",
    )
    kubeconfig: str | None = setting(
        None,
        parse=words,
        help="Kubernetes cluster that has the pods, claims and volumes of the edge nodes: a kubeconfig file, or "
        "in-cluster for the ServiceAccount of the hub's pod.",
    )
    node_labels: Labels = setting(
        f"{EDGE}={AGENT}",
        parse=labels,
        help="With --kubeconfig: the labels of each Node that the hub makes for a node without a kubelet. They replace "
        "the default; an empty flag sets none. The hub sets them once and keeps your later changes.",
    )
    register_with_taints: Taints = setting(
        f"{EDGE}={AGENT}:NoSchedule",
        parse=taints,
        help="With --kubeconfig: the taints of each such Node, as for --node-labels: only pods that tolerate them go "
        "there.",
    )
    max_connections: int = setting(
        "20000",
        parse=bounded(count, low="1", high="1000000"),
        unit="connections",
        group="tuning",
        help="Connections to --listen at one time; more are refused.",
    )
    max_nodes: int = setting(
        "20000",
        parse=bounded(count, low="1", high="1000000"),
        unit="nodes",
        group="tuning",
        help="Edge nodes that the hub knows, connected or not. Above this limit a new node is refused; a known one "
        "never is.",
    )

    def __post_init__(self) -> None:
        """Check what concerns several settings together."""
        super().__post_init__()
        if self.listen is not None and self.tls_cert is None:
            if not self.insecure:
                raise self.wrong(
                    "listen", "needs --tls-ca, --tls-cert and --tls-key (or --insecure on a loopback address)"
                )
            if not is_loopback(self.listen.host):
                raise self.wrong("insecure", f"is for loopback addresses, and {self.listen.host} is none")
        if self.manifests is not None and self.kubeconfig is not None:
            raise self.wrong("kubeconfig", "and --manifests exclude each other: the objects come from one place")
        if self.uds_group is not None and not self.uds_allow_uid:
            raise self.wrong("uds_group", "needs at least one --uds-allow-uid")
        if self.uds_allow_uid and self.uds_group is None:
            raise self.wrong("uds_allow_uid", "needs --uds-group: without it nobody but the hub's own user may connect")

    def uds_gid(self) -> int | None:
        """The group's number.

        Raises:
            SettingsError: there is no such group.
        """
        if self.uds_group is None:
            return None
        try:
            gid = int(self.uds_group) if self.uds_group.isdecimal() else grp.getgrnam(self.uds_group).gr_gid
        except KeyError:
            raise self.wrong("uds_group", "there is no such group here") from None
        if gid > _LARGEST_GID:
            raise self.wrong("uds_group", f"a group's number is at most {_LARGEST_GID}")
        return gid
