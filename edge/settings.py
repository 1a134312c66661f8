"""The agent's settings."""

from dataclasses import dataclass, fields
from pathlib import Path

from common.errors import SettingsError
from common.net.endpoint import Endpoint, hub_endpoint
from common.net.proxy import Proxy
from common.net.settings import ProcessSettings
from edge.disk.runtimes import DirectRuntime
from edge.identity.identity import Identity


@dataclass(frozen=True, kw_only=True)
class AgentFlags(ProcessSettings):
    """The flags of `csi-bridge edge run`. A joined node needs neither `node` nor `hub` nor TLS files."""

    node: str | None
    hub: tuple[Endpoint, ...]
    proxy: Proxy | None
    driver: tuple[Path, ...]
    state_dir: Path
    root_dir: Path
    registration: str
    relay_dir: Path | None
    durability: str
    volume_stats_interval_s: float
    volume_republish_interval_s: float
    direct_runtime: tuple[DirectRuntime, ...]
    direct_run_dir: Path
    cdi_dir: Path | None
    status: Path | None
    max_operations: int
    operation_limit_s: float
    controller_lease_s: float
    fence: str
    watchdog: Path

    def __post_init__(self) -> None:
        super().__post_init__()
        for flag, value, why in (
            ("--cdi-dir", self.cdi_dir, "a kubelet asks for devices"),
            ("--fence", self.fence if self.fence != "off" else None, "a kubelet mounts its volumes"),
        ):
            if value is not None and self.registration == "observe":
                raise SettingsError(flag, value, f"is for nodes without a kubelet: {why}")
        if self.direct_runtime and self.registration == "observe" and self.relay_dir is None:
            why = "needs --relay-dir beside a kubelet, which calls the drivers through the agent then"
            raise SettingsError("--direct-runtime", self.direct_runtime[0], why)
        names = [runtime.name for runtime in self.direct_runtime]
        for runtime in self.direct_runtime:
            if names.count(runtime.name) > 1:
                raise SettingsError("--direct-runtime", runtime, "is given twice for one RuntimeClass")
        if self.relay_dir is not None and self.registration != "observe":
            why = "is for nodes with a kubelet: say --registration=observe, too"
            raise SettingsError("--relay-dir", self.relay_dir, why)
        if self.relay_dir is not None and not self.relay_dir.is_absolute():
            raise SettingsError("--relay-dir", self.relay_dir, "must be an absolute path: a kubelet is told of it")
        for hub in self.hub:
            if not hub.tls:
                self.check_dial("--hub", hub)


@dataclass(frozen=True, kw_only=True)
class AgentSettings(AgentFlags):
    """The settings of an agent: its flags, and the settings of the join where a flag is not set."""

    node: str

    def __post_init__(self) -> None:
        super().__post_init__()
        for hub in self.hub:
            self.check_dial("--hub", hub)

    @property
    def is_joined(self) -> bool:
        return self.tls_cert == Identity(self.state_dir).files.cert


_OR_JOIN = "required, unless this node has joined: csi-bridge edge join, with the same --state-dir"


def complete(flags: AgentFlags) -> AgentSettings:
    """The settings that a node starts with. Given TLS files, or a hub without TLS, win over the join."""
    values = {field.name: getattr(flags, field.name) for field in fields(flags)}
    identity = Identity(flags.state_dir)
    if flags.tls_cert is None and all(hub.tls for hub in flags.hub):
        joined = identity.joined()
        if joined is not None:
            if flags.node not in (None, joined.node):
                why = f"the node has joined as {joined.node}; leave out --node, or take another --state-dir"
                raise SettingsError("--node", flags.node, why)
            values |= {"node": joined.node, "hub": flags.hub or tuple(map(hub_endpoint, joined.hubs))}
            ca = identity.files.ca
            cert = identity.files.cert
            key = identity.files.key
            values |= {"tls_ca": ca, "tls_cert": cert, "tls_key": key}
    for name in ("node", "hub"):
        if not values[name]:
            raise SettingsError(f"--{name}", None, _OR_JOIN)
    return AgentSettings(**values)
