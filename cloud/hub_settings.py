"""The hub's settings."""

import grp
from dataclasses import dataclass
from pathlib import Path

from cloud.claims.election import ElectionRules, NodeSet, patterns_of
from cloud.kube.node_marks import Labels, Taints, is_reserved
from cloud.nodes.unique_segments import UniqueKeys
from cloud.proxy.served_driver import ServedDriver
from common.errors import SettingsError
from common.net.endpoint import Endpoint, is_loopback
from common.net.settings import ProcessSettings
from common.parsers import HostPort

_JITTER = 1.2  # client-go's JitterFactor: its pauses between tries grow by up to this
LARGEST_ID = 2**32 - 2  # `uid_t` and `gid_t` have 32 bits, and their highest value means "leave it" (chown(2))


@dataclass(frozen=True, kw_only=True)
class HubSettings(ProcessSettings):
    """The settings of `csi-bridge hub`. `cli.process_options.HUB_OPTIONS` has the flags and their help."""

    name: str
    uds: Path
    uds_group: str | None
    uds_allow_uid: tuple[int, ...]
    serve: tuple[ServedDriver, ...]
    hub_endpoint: tuple[Endpoint, ...]
    listen: HostPort | None
    state_dir: Path
    require_rights: bool
    manifests: Path | None
    kubeconfig: str | None
    leader_election_lease_duration_s: float
    leader_election_renew_deadline_s: float
    leader_election_retry_period_s: float
    leader_election_namespace: str | None
    node_labels: Labels
    register_with_taints: Taints
    edgecore_nodes: bool
    max_connections: int
    max_handshakes: int
    max_nodes: int
    max_open_creates: int
    candidates: tuple[NodeSet, ...]
    prefer: tuple[NodeSet, ...]
    takeover_after_s: float
    unique_topology: UniqueKeys
    fact_quota_bytes: int
    audit_grace_s: float
    ca_key: Path | None
    cert_ttl_s: float
    join_listen: HostPort | None
    renew_grace_s: float
    hub_address: tuple[Endpoint, ...]
    join_address: tuple[Endpoint, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.listen is not None and self.tls_cert is None:
            if not self.insecure:
                why = "needs --tls-ca, --tls-cert and --tls-key (or --insecure on a loopback address)"
                raise SettingsError("--listen", self.listen, why)
            if not is_loopback(self.listen.host):
                raise SettingsError("--insecure", "true", f"is for loopback addresses, and {self.listen.host} is none")
        rights = "true" if self.require_rights else None
        for flag, value in (
            ("--ca-key", self.ca_key),
            ("--join-listen", self.join_listen),
            ("--require-rights", rights),
        ):
            if value is not None and self.tls_cert is None:
                raise SettingsError(flag, value, "needs --tls-ca, --tls-cert and --tls-key")
        if self.manifests is not None and self.kubeconfig is not None:
            why = "and --manifests exclude each other: the objects come from one place"
            raise SettingsError("--kubeconfig", self.kubeconfig, why)
        if self.edgecore_nodes and self.kubeconfig is None:
            raise SettingsError("--edgecore-nodes", "true", "needs --kubeconfig: CSINodes are objects of a cluster")
        self._check_election()
        self._check_served()
        self._check_labels()
        if self.uds_group is not None and not self.uds_allow_uid:
            raise SettingsError("--uds-group", self.uds_group, "needs at least one --uds-allow-uid")
        if self.uds_allow_uid and self.uds_group is None:
            why = "needs --uds-group: without it nobody but the hub's own user may connect"
            raise SettingsError("--uds-allow-uid", ",".join(map(str, self.uds_allow_uid)), why)

    def election_rules(self, driver: str) -> ElectionRules:
        return ElectionRules(
            patterns_of(driver, self.candidates), patterns_of(driver, self.prefer), self.takeover_after_s
        )

    def _check_election(self) -> None:
        # As client-go does.
        deadline_s = self.leader_election_renew_deadline_s
        if self.leader_election_lease_duration_s <= deadline_s:
            why = "must be longer than --leader-election-renew-deadline"
            raise SettingsError("--leader-election-lease-duration", f"{self.leader_election_lease_duration_s:g}s", why)
        if deadline_s <= _JITTER * self.leader_election_retry_period_s:
            why = f"must be longer than {_JITTER} times --leader-election-retry-period"
            raise SettingsError("--leader-election-renew-deadline", f"{deadline_s:g}s", why)

    def _check_served(self) -> None:
        for endpoint in self.hub_endpoint:
            self.check_dial("--hub-endpoint", endpoint)
        names = set()
        sockets = {self.uds}
        for served in self.serve:
            if served.name in names:
                raise SettingsError("--serve", served, f"is the second one for driver {served.name}")
            if served.endpoint in sockets:
                raise SettingsError("--serve", served, "needs a socket of its own")
            names.add(served.name)
            sockets.add(served.endpoint)

    def _check_labels(self) -> None:
        for flag, sets in (("--candidates", self.candidates), ("--prefer", self.prefer)):
            for each in sets:
                if each.label_keys() and self.kubeconfig is None:
                    why = "labels are those of a cluster's Nodes, and this hub follows no cluster: needs --kubeconfig"
                    raise SettingsError(flag, each, why)
        for each in self.candidates:
            for key in each.label_keys():
                if not is_reserved(key):
                    why = (
                        f"a node may set the label {key} on its own Node, and become a candidate by it; use a label "
                        f"that only administrators set, such as node-restriction.kubernetes.io/…, or names"
                    )
                    raise SettingsError("--candidates", each, why)

    def uds_gid(self) -> int | None:
        """The number of the group. Raises SettingsError."""
        if self.uds_group is None:
            return None
        try:
            gid = int(self.uds_group) if self.uds_group.isdecimal() else grp.getgrnam(self.uds_group).gr_gid
        except KeyError:
            raise SettingsError("--uds-group", self.uds_group, "there is no such group here") from None
        if gid > LARGEST_ID:
            raise SettingsError("--uds-group", self.uds_group, f"a group's number is at most {LARGEST_ID}")
        return gid
