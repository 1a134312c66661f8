"""The options of the long-running commands: the hub, a proxy driver and an edge agent."""

from functools import partial
from pathlib import Path

import click

from cli.options import FilePath, Options, Text, duration_type, option, size_type
from cloud.claims.election import node_set
from cloud.hub_settings import LARGEST_ID, HubSettings
from cloud.kube.node_marks import AGENT, EDGE, EDGECORE, labels, taints
from cloud.nodes.unique_segments import HOSTNAME, unique_keys
from cloud.proxy.driver_settings import DriverSettings, Mode
from cloud.proxy.served_driver import served_driver
from common.net.endpoint import hub_endpoint, hub_endpoint_with_tls
from common.net.proxy import read_proxy
from common.parsers import driver_name, host_port, node_name, octal_mode, unix_path, words
from edge.disk.runtimes import direct_runtime
from edge.settings import AgentFlags

PATH = FilePath(readable=False, path_type=Path)
SOCKET = Text(unix_path, "unix:///PATH")
TEXT = Text(words, "TEXT")
NODE = Text(node_name, "NAME")
ADDRESS = Text(host_port, "HOST:PORT")
ENDPOINT = Text(hub_endpoint, "ENDPOINT")
HUB_ADDRESS = Text(hub_endpoint_with_tls, "wss://HOST:PORT")
_logs, _tls, _tuning, _join = (partial(option, group=group) for group in ("logs", "tls", "tuning", "join"))
_LINK_TIME = duration_type("100ms", "10m")
_TIME = duration_type("1s", "24h")

HUB_PROXY = option(
    "--proxy",
    type=Text(read_proxy, "PROXY"),
    help="HTTP proxy on the way to the hub: http://[USER:PASSWORD@]HOST:PORT. Unset: HTTPS_PROXY. NO_PROXY excepts "
    "hosts. Give a password by a variable: all users of the host see flags.",
)

# The options of each of them. The defaults of limits and times, and the reasons for them, are those of `Limits`.
PROCESS_OPTIONS = (
    _logs(
        "--log-format=auto",
        type=click.Choice(["auto", "text", "json"]),
        help="Format of log lines. auto is text on a terminal and JSON otherwise.",
    ),
    _logs(
        "--log-level=info",
        type=click.Choice(["debug", "info", "warning", "error"]),
        help="Least severe level that is logged.",
    ),
    _logs(
        "--v=0",
        "-v",
        "verbosity",
        type=click.IntRange(0, 2**31 - 1),
        help="Verbosity as in klog. 4 or more is the same as --log-level=debug.",
    ),
    _logs(
        "--http",
        type=ADDRESS,
        help="Address for /metrics, /healthz, /readyz, and of a hub /readyz/active. Unset: not served.",
    ),
    _tuning(
        "--max-message=4MiB",
        type=size_type("64KiB", "64MiB"),
        help="Largest CSI message that is carried. The stock sidecars take no answer above 4 MiB.",
    ),
    _tuning(
        "--session-window=64MiB",
        type=size_type("1MiB", "1GiB"),
        help="Bytes that a peer may send on a link before they are passed on. Limits the memory of a link.",
    ),
    _tuning(
        "--max-calls=1024",
        type=click.IntRange(1, 100_000),
        unit="calls",
        help="Calls that a peer may have under way on a link at one time.",
    ),
    _tuning(
        "--keepalive=10s",
        type=_LINK_TIME,
        help="A link that is silent for this time is probed. After twice this time it is closed.",
    ),
    _tuning(
        "--hello-timeout=30s", type=_LINK_TIME, help="Time limit for connecting, TLS and the first hello together."
    ),
    _tuning(
        "--drain-timeout=25s",
        type=duration_type(),
        help="Time for calls under way to finish after SIGTERM. Kubernetes kills a pod after 30 s by default. A "
        "hub with --kubeconfig waits for none: their retries reach the hub that takes over.",
    ),
    _tls("--tls-ca", type=PATH, help="PEM file of the CA that signs the peers' certificates."),
    _tls("--tls-cert", type=PATH, help="PEM file of this process's certificate."),
    _tls("--tls-key", type=PATH, help="PEM file of that certificate's private key."),
    _tls("--insecure", type=click.BOOL, help="Allow plain ws:// on a loopback address, for tests and the demo."),
)

HUB_OPTIONS = Options(
    HubSettings,
    "HUB",
    *PROCESS_OPTIONS,
    option("--name=hub", type=TEXT, help="Name that the hub tells its peers."),
    option(
        "--uds=unix:///var/lib/kubeedge/kubeedge.sock",
        type=SOCKET,
        help="UNIX socket for proxy drivers and operators on this host. The default is KubeEdge's path.",
    ),
    option("--uds-group", type=TEXT, help="Group of the UNIX socket, whose mode is then 0660 instead of 0600."),
    option(
        "--uds-allow-uid",
        type=click.IntRange(0, LARGEST_ID),
        multiple=True,
        unit="uid",
        help="User id that may connect to the UNIX socket. Needs --uds-group.",
    ),
    option(
        "--serve",
        type=Text(served_driver, "NAME=unix:///PATH,..."),
        multiple=True,
        help="Driver whose proxy driver runs inside the hub's process, and the UNIX socket for its sidecars. Options, "
        "as of csi-bridge driver, may follow: ,placement=MODE ,nodeid=NAME ,endpoint-mode=MODE. A restart of the hub "
        "then closes the sidecars' connections.",
    ),
    option(
        "--hub-endpoint",
        type=ENDPOINT,
        multiple=True,
        help="For --serve: address of each hub of the cluster, also of this one. Beside a standby, a driver calls the "
        "hub that leads, as a proxy driver does; the certificate in --tls-cert must then also be for that driver. "
        "Unset: its sidecars wait until this hub leads.",
    ),
    option("--listen", type=ADDRESS, help="Address for edge agents, and for proxy drivers on other hosts (wss)."),
    option(
        "--state-dir=/var/lib/csi-bridge/hub",
        type=PATH,
        help="Directory for the hub's records of nodes and volumes. Its disk must outlive the hub. One hub uses it.",
    ),
    option(
        "--require-rights",
        type=click.BOOL,
        help="Refuse edge agents whose certificate names no drivers (csi-bridge token create --driver). Unset: such a "
        "node may report every driver.",
    ),
    option(
        "--manifests",
        type=PATH,
        help="Directory of YAML or JSON with the pods, claims and volumes of edge nodes, for sites without Kubernetes.",
    ),
    option(
        "--kubeconfig",
        type=TEXT,
        help="Kubernetes cluster that has the pods, claims and volumes of the edge nodes: a kubeconfig file, or "
        "in-cluster for the ServiceAccount of the hub's pod.",
    ),
    option(
        "--leader-election-namespace",
        type=TEXT,
        help="With --kubeconfig: namespace of the Lease csi-bridge-hub, whose holder leads. The other hubs of a "
        "cluster are standbys. Unset: that of the hub's pod, or default outside of a pod.",
    ),
    _tuning(
        "--leader-election-lease-duration=15s",
        type=_TIME,
        help="Time without a renewal after which a waiting hub takes the Lease.",
    ),
    _tuning(
        "--leader-election-renew-deadline=10s",
        type=_TIME,
        help="Time without a renewal after which the hub that holds the Lease ends.",
    ),
    _tuning(
        "--leader-election-retry-period=5s",
        type=duration_type("100ms", "24h"),
        help="Time between two renewals. A hub whose renewal has failed tries each second, a waiting hub twice.",
    ),
    option(
        f"--node-labels={EDGE}={AGENT}",
        type=Text(labels, "KEY=VALUE,..."),
        help="With --kubeconfig: the labels of each Node that the hub makes for a node without a kubelet. They replace "
        "the default; an empty flag sets none. The hub sets them once and keeps your later changes.",
    ),
    option(
        f"--register-with-taints={EDGE}={AGENT}:NoSchedule",
        type=Text(taints, "KEY=VALUE:EFFECT,..."),
        help="With --kubeconfig: the taints of each such Node, as for --node-labels: only pods that tolerate them go "
        "there.",
    ),
    option(
        "--edgecore-nodes",
        type=click.BOOL,
        help=f"With --kubeconfig: the kubelet of each Node with the label {EDGE}={EDGECORE} is KubeEdge's EdgeCore, "
        "which cannot write CSINodes. The hub writes the drivers there that the node's agent reports with "
        "--registration=observe, and adds topology labels that the Node lacks. Unset: it writes neither.",
    ),
    option(
        f"--unique-topology={HOSTNAME}",
        type=Text(unique_keys, "KEY,..."),
        help="Keys of topology segments that only one node can have. A segment belongs to the first node that reports "
        "it, until csi-bridge forget. The list replaces the default; an empty flag lists none. csi-bridge.io/node is "
        "always unique.",
    ),
    _tuning(
        "--max-connections=16000",
        type=click.IntRange(1, 1_000_000),
        unit="connections",
        help="Agents and proxy drivers that are connected to --listen at one time; more are refused.",
    ),
    _tuning(
        "--max-handshakes=2048",
        type=click.IntRange(1, 1_000_000),
        unit="connections",
        help="Connections to --listen, and to --uds, whose peers the hub has not admitted yet. Above this limit, the "
        "address with the most of them loses one.",
    ),
    _tuning(
        "--max-nodes=20000",
        type=click.IntRange(1, 1_000_000),
        unit="nodes",
        help="Edge nodes that the hub knows, connected or not. Above this limit a new node is refused; a known one "
        "never is.",
    ),
    _tuning(
        "--max-open-creates=20000",
        type=click.IntRange(1, 10_000_000),
        unit="creates",
        help="Creates of one driver that may run, or have an unknown outcome, at one time. Above this limit a new name "
        "is refused; a retry never is. Of several nodes, one can have about three quarters.",
    ),
    option(
        "--candidates",
        type=Text(node_set, "DRIVER=NODE,..."),
        multiple=True,
        help="With --placement=shared: the nodes that may be elected to serve a driver. NODE is a name, with the "
        "wildcards * and ?, or a label of the Node: label:KEY=VALUE, or label:KEY. Only labels that no node may set "
        "itself. Unset: every node that runs the driver.",
    ),
    option(
        "--prefer",
        type=Text(node_set, "DRIVER=NODE,..."),
        multiple=True,
        help="With --placement=shared: the nodes that an election prefers, the most preferred first, as names or "
        "labels. An elected node stays while it serves.",
    ),
    _tuning(
        "--takeover-after=15s",
        type=duration_type("1s", "24h"),
        help="With --placement=shared: time for which the elected node may be away before another one serves.",
    ),
    _tuning(
        "--fact-quota=8MiB",
        type=size_type("1MiB", "1GiB"),
        help="Room in the hub's memory and records for one node's facts: the state of the node, its pods and claims.",
    ),
    _tuning(
        "--audit-grace=10m",
        type=duration_type("0s", "1h"),
        help="A volume that may be younger is no leak: its PersistentVolume may not be written yet.",
    ),
    _join(
        "--ca-key",
        type=PATH,
        help="PEM file of the private key of a CA in --tls-ca. With it the hub signs the certificates of nodes that "
        "join (csi-bridge token create) and renews them. Unset: the agents' certificates come from files.",
    ),
    _join(
        "--cert-ttl=168h",
        type=duration_type("10s", "8760h"),
        help="Life of a certificate that the hub signs. The agent renews it after two thirds of it.",
    ),
    _join(
        "--join-listen",
        type=ADDRESS,
        help="Address at which nodes join, and renew certificates that have ended. It asks for no client certificate. "
        "Unset: no node can join.",
    ),
    _join(
        "--renew-grace=1440h",
        type=duration_type("0s", "87600h"),
        help="Time after a certificate's end in which its node can renew it at --join-listen. Later it has to join "
        "again.",
    ),
    _join(
        "--hub-address",
        type=HUB_ADDRESS,
        multiple=True,
        help="Address of --listen that the hub tells joining nodes. Give those of all hubs of a cluster. Unset: the "
        "names in --tls-cert, but those of Services, with the port of --listen.",
    ),
    _join(
        "--join-address",
        type=HUB_ADDRESS,
        multiple=True,
        help="Address of --join-listen that tokens hold. Unset: as for --hub-address, with the port of --join-listen.",
    ),
)

# `--drivername`, `--endpoint`, `--kubeedge-endpoint`, `--nodeid` and `--v` are the flags of KubeEdge's csidriver.
DRIVER_OPTIONS = Options(
    DriverSettings,
    "DRIVER",
    *PROCESS_OPTIONS,
    option(
        "--drivername",
        type=Text(driver_name, "NAME"),
        required=True,
        help="Name of the vendor's driver, as its GetPluginInfo returns it.",
    ),
    option("--endpoint=unix:///csi/csi.sock", type=SOCKET, help="UNIX socket for the sidecars (their --csi-address)."),
    option(
        "--endpoint-mode=0660",
        type=Text(octal_mode, "MODE"),
        help="File mode of --endpoint. Sidecars may run as other users.",
    ),
    option(
        "--hub-endpoint=unix:///var/lib/kubeedge/kubeedge.sock",
        "--kubeedge-endpoint",
        type=ENDPOINT,
        multiple=True,
        help="Address of the hub: its UNIX socket, or wss://HOST:PORT on another host. Give those of all hubs of a "
        "cluster: the proxy driver keeps a link to each, and calls the one that leads.",
    ),
    HUB_PROXY,
    option("--nodeid", type=NODE, help="Edge node that every call goes to. Excludes --placement=local and shared."),
    option(
        "--placement=auto",
        type=click.Choice([it.value for it in Mode]),
        help="How the node of a call is chosen. pinned: --nodeid, else the only node that runs the driver. local: each "
        "node has its own storage; a volume is made where its topology says, and later calls for it go there. shared: "
        "every node reaches the storage; the hub elects the one that serves all calls. auto: "
        "local if the driver has a topology of its own, else pinned.",
    ),
    _tuning(
        "--max-connections=1024",
        type=click.IntRange(1, 100_000),
        unit="connections",
        help="Connections of sidecars at one time; more are closed. A sidecar keeps one, and livenessprobe opens one "
        "for each check.",
    ),
    option(
        "--state-dir=/var/lib/csi-bridge/driver",
        type=PATH,
        help="Directory for the driver's Identity and capabilities, so that sidecars can start while the link is down.",
    ),
)

EDGE_STATE_DIR = option(
    "--state-dir=/var/lib/csi-bridge/edge",
    type=PATH,
    help="Directory for everything that the agent keeps over a restart.",
)

EDGE_OPTIONS = Options(
    AgentFlags,
    "EDGE",
    *PROCESS_OPTIONS,
    option("--node", type=NODE, help="Name of this node in Kubernetes. Required, unless the node has joined."),
    option(
        "--hub",
        type=ENDPOINT,
        multiple=True,
        help="Address of the hub: wss://HOST:PORT. Required, unless the node has joined. Give those of all hubs of a "
        "cluster: the agent keeps a link to each, and serves the one that leads.",
    ),
    HUB_PROXY,
    option(
        "--driver",
        type=SOCKET,
        multiple=True,
        help="Socket of a vendor's CSI driver on this node. If the vendor's controller and node plugin are two "
        "processes of one name, give the controller's socket; the node plugin registers by itself.",
    ),
    EDGE_STATE_DIR,
    option(
        "--root-dir=/var/lib/kubelet",
        type=PATH,
        help="Kubelet's directory, where drivers register and pods' volumes are mounted. KubeEdge's is /var/lib/edged.",
    ),
    option(
        "--registration=own",
        type=click.Choice(["own", "observe"]),
        help="own: the agent takes registrations and mounts pods' volumes, as a kubelet does. observe: a kubelet does "
        "that on this node; the agent finds its drivers, and mounts nothing but the guards of --direct-runtime.",
    ),
    option(
        "--relay-dir",
        type=PATH,
        help="Needs --registration=observe. Directory for one relay socket per driver, PATH/<driver>.sock, which the "
        "kubelet calls in place of the driver (node-driver-registrar's --kubelet-registration-path). The relay adds "
        "this node to the answers of a driver without a topology. Without it such volumes are not tied to a node.",
    ),
    option(
        "--durability=normal",
        type=click.Choice(["normal", "full"]),
        help="full: every write is on the disk before the next step (fsync), for nodes that lose power.",
    ),
    _tuning(
        "--volume-stats-interval=1m",
        type=_TIME,
        help="Time between two questions to a driver for the usage and health of a volume.",
    ),
    _tuning(
        "--volume-republish-interval=1m",
        type=_TIME,
        help="Time between two publications of a volume whose driver wants them (requiresRepublish). The agent adds up "
        "to half of it.",
    ),
    option(
        "--direct-runtime",
        type=Text(direct_runtime, "NAME=FLAVOUR:VERSION"),
        multiple=True,
        help="A RuntimeClass whose pods may have volumes that the runtime mounts in its guest (Kata direct volumes), "
        "with go or rs (runtime-rs) and Kata's version: kata=go:3.20. File systems that the guest mounts may follow: "
        "kata=go:3.20:ext4. Without this flag no volume is deferred. With --registration=observe it needs --relay-dir.",
    ),
    _tuning(
        "--direct-run-dir=/run",
        type=PATH,
        help="Directory below which these runtimes keep their direct volumes and sandboxes.",
    ),
    option(
        "--cdi-dir",
        type=PATH,
        help="Directory for CDI files, usually /var/run/cdi. They let a container engine give a pod's containers its "
        "raw block volumes, and those that the runtime mounts, by names that edge volumes shows. unset: no files.",
    ),
    option(
        "--status=unix:///run/csi-bridge/edge.sock",
        type=SOCKET,
        help="UNIX socket where the agent tells its state as JSON over HTTP: curl --unix-socket PATH http://edge/status.",
    ),
    _tuning(
        "--max-operations=1024",
        type=click.IntRange(1, 100_000),
        unit="operations",
        help="Calls that change something and are under way at the drivers at one time, also without a caller.",
    ),
    _tuning(
        "--operation-limit=10m",
        type=_TIME,
        help="Time limit for one call to a driver. After it the agent cancels the call, and a retry can start anew.",
    ),
    _tuning(
        "--controller-lease=60s",
        type=_TIME,
        help="Time without an answer of the hub after which the agent cancels its controller operations of shared "
        "drivers (--placement=shared) and begins no others. Until then, the node that takes over repeats none of them.",
    ),
    _tuning(
        "--fence=off",
        type=click.Choice(["on", "off"]),
        help="Whether volumes with csi-bridge.io/offline: fence may go to another node while this one is away. When "
        "the controller lease ends, the agent shuts their file systems down. If it cannot, or is dead, the watchdog "
        "resets the machine. Say `on` only for a machine that is never paused as a whole.",
    ),
    _tuning(
        "--watchdog=/dev/watchdog",
        type=PATH,
        help="Watchdog device of the kernel, for --fence=on alone. Its time must be 30 s or more.",
    ),
)
