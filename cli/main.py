"""The command line: `csi-bridge` and its commands. Each imports its code only when it runs."""

import math
import sys
from pathlib import Path

import click

from cli import process_options
from cli.command import CONTEXT_SETTINGS, Group
from cli.operators.operator_options import LOCAL_HUB, OperatorSettings, asking
from cli.options import Text, duration_type, of_command, option
from cli.process_options import NODE, SOCKET, TEXT
from cloud.hub_settings import HubSettings
from cloud.proxy.driver_settings import DriverSettings
from common.net.endpoint import Endpoint
from common.net.proxy import Proxy
from common.observe.version import VERSION
from common.operator_orders import Allow, CreateToken, Deny, Fence, Forget, RevokeToken, Trust, Unfence
from common.parsers import driver_name, words
from edge.settings import AgentFlags

_COMPLETION = """\b
Shell completion in bash (in zsh and fish with zsh_source and fish_source):
  eval "$(_CSI_BRIDGE_COMPLETE=bash_source csi-bridge)"
"""


OUTPUT_HELP = "Form of the output; json is for programs."
OUTPUT = option("--output=table", "-o", type=click.Choice(["table", "json"]), help=OUTPUT_HELP)


@click.group(cls=Group, context_settings=CONTEXT_SETTINGS, epilog=_COMPLETION)
@click.version_option(VERSION, prog_name="csi-bridge")
def cli() -> None:
    """Run a vendor's CSI driver on edge nodes that the cloud cannot reach.

    In the cloud run `hub`, and one `driver` beside the sidecars of each CSI driver. On each edge node run `edge run`.
    If something does not work, run `doctor` there. The other commands ask the hub; run them on its host or in its pod.
    """


@cli.command(settings=process_options.HUB_OPTIONS)
def hub(settings: HubSettings) -> None:
    """Run the hub in the cloud.

    It carries calls between proxy drivers and edge agents, and tells the agents of their nodes' pods and volumes.
    """
    from cli import process
    from cloud import hub_process

    process.run(settings, hub_process.run, name="hub", named=process_options.HUB_OPTIONS.named)


@cli.command(settings=process_options.DRIVER_OPTIONS)
def driver(settings: DriverSettings) -> None:
    """Run a proxy driver: the stock sidecars call it.

    It forwards their calls to the hub. It also takes the flags of KubeEdge's csidriver, with one dash or two.
    """
    from cli import process
    from cloud import csi_proxy_driver

    process.run(settings, csi_proxy_driver.run, name="proxy driver", named=process_options.DRIVER_OPTIONS.named)


@cli.group(context_settings=CONTEXT_SETTINGS)
def edge() -> None:
    """Join a node to a hub, run its agent, or show its volumes."""


@edge.command("run", settings=process_options.EDGE_OPTIONS)
def edge_run(settings: AgentFlags) -> None:
    """Run the agent of this edge node.

    It keeps a link to the hub and calls the drivers of this node for it. On a node without a kubelet it also mounts the
    volumes of the node's pods. A node that has joined (`edge join`) needs no flag.
    """
    from cli import process
    from edge import agent

    process.run(settings, agent.run, name="edge agent", named=process_options.EDGE_OPTIONS.named)


@edge.command(
    "join",
    params=of_command(
        "EDGE",
        option("--node", type=NODE, help="Name of this node in Kubernetes. Unset: the host's name."),
        process_options.EDGE_STATE_DIR,
        process_options.HUB_PROXY,
        option("--timeout=10s", type=duration_type("1s", "10m"), help="Time limit for each connection."),
    ),
)
@click.argument("token")
def edge_join(token: str, node: str | None, state_dir: Path, proxy: Proxy | None, timeout_s: float) -> None:
    """Join this node to a hub.

    TOKEN is the line that `token create` prints on the hub's host; @FILE reads it from a file, and - from standard
    input. As an argument it stands in this host's list of processes meanwhile. The node's key is made here and never
    leaves the node. The hub's certificate and address are stored with it, so that `edge run` needs no other flag. If
    the command fails, run it again. Exit code 1: the node has not joined.
    """
    from cli import edge_join as joining

    usual = process_options.EDGE_OPTIONS.default("state_dir")
    joining.run(token, node, state_dir, usual_state_dir=usual, proxy=proxy, timeout_s=timeout_s)


@edge.command(
    "volumes",
    params=of_command(
        "EDGE_VOLUMES",
        option(
            "--pod", type=TEXT, help="Only the volumes of this pod: NAMESPACE/NAME, or NAME in the namespace default."
        ),
        option(
            "--wait",
            type=click.BOOL,
            help="Wait until every volume is published (with --pod: of that pod). Progress goes to stderr.",
        ),
        OUTPUT,
        option("--timeout=5m", type=duration_type(), help="Time limit for --wait, and for the agent's answer."),
        option(
            "--status=unix:///run/csi-bridge/edge.sock", type=SOCKET, help="Status socket of the agent (its --status)."
        ),
    ),
)
def edge_volumes(pod: str | None, output: str, timeout_s: float, status: Path, *, wait: bool) -> None:
    """Show the volumes of this node's pods.

    Each has its path and state. With --wait the command ends when the volumes are published. Exit code 1: the agent
    does not answer, or the time limit of --wait is over.
    """
    from cli import edge_volumes as of_node

    sys.exit(of_node.run(status, pod, wait=wait, timeout_s=timeout_s, as_json=output == "json"))


@cli.command(
    settings=asking(
        "CALL",
        option("--driver", type=Text(driver_name, "NAME"), required=True, help="Name of the driver."),
        option("--node", type=NODE, help="Edge node that gets the call. If unset, the hub chooses."),
    )
)
@click.argument("method")
@click.argument("request_json", metavar="[JSON]", default="{}")
def call(settings: OperatorSettings, driver: str, node: str | None, method: str, request_json: str) -> None:
    """Make one CSI call by hand, through the hub.

    METHOD is CreateVolume, Controller/CreateVolume or a whole path. JSON is the request; @FILE reads it from a file,
    and - from standard input. Pass a request with secrets in one of these ways: other users see the command line. The
    answer is printed as JSON, without secrets. Of the Node service only NodeGetCapabilities can be called. Exit code 1:
    the call did not end with OK.
    """
    from cli.operators import call as by_hand

    sys.exit(by_hand.run(settings, driver=driver, node=node or "", name=method, text=request_json))


@cli.command(settings=asking("STATUS", OUTPUT))
def status(settings: OperatorSettings, output: str) -> None:
    """Show an overview of the hub, and all its problems.

    The overview lists the edge nodes with their drivers, and the proxy drivers. For the calls and failures of each node
    see `nodes`.
    """
    from cli.operators import status as of_hub

    of_hub.run(settings, as_json=output == "json")


@cli.command(
    params=of_command(
        "DOCTOR",
        # Without the default of OPERATOR_OPTIONS: a hub that was named must be there, the usual one need not.
        option(
            "--hub",
            envvar="CSI_BRIDGE_HUB",
            type=LOCAL_HUB,
            help="UNIX socket of a hub on this host (its --uds). Unset: its usual path.",
        ),
        option(
            "--endpoint",
            type=SOCKET,
            multiple=True,
            help="Socket of a proxy driver on this host (its --endpoint). Unset: its usual path.",
        ),
        option(
            "--status",
            type=SOCKET,
            help="Status socket of an edge agent on this host (its --status). Unset: its usual path.",
        ),
        option(
            "--kubeconfig",
            type=TEXT,
            help="Kubernetes cluster to look at beside the hub: a kubeconfig file, or in-cluster. Unset: the hub's "
            "own.",
        ),
        option("--output=text", "-o", type=click.Choice(["text", "json"]), help=OUTPUT_HELP),
        option("--timeout=10s", type=duration_type("100ms", "10m"), help="Time limit for each check."),
    )
)
def doctor(
    *,
    hub: Endpoint | None,
    endpoint: tuple[Path, ...],
    status: Path | None,
    kubeconfig: str | None,
    output: str,
    timeout_s: float,
) -> None:
    """Check this host for faults, and suggest remedies.

    It looks at the hub, the proxy drivers and the edge agent that it finds by their usual sockets, or by those given.
    Run it as root, or as their user. Exit code 1: there is a fault.
    """
    from cli.doctor import command

    sys.exit(command.run(hub, endpoint, status, kubeconfig, timeout_s=timeout_s, as_json=output == "json"))


@cli.command(settings=asking("NODES", OUTPUT))
def nodes(settings: OperatorSettings, output: str) -> None:
    """Show each edge node in detail, with its last failed call.

    Each node has its address and the number of calls under way. Below stand the last failed call of each node, until a
    later call of that driver succeeds there, and the peers that the hub refused.
    """
    from cli.operators import node_list as of_hub

    of_hub.run(settings, as_json=output == "json")


@cli.command(settings=asking("VOLUMES", OUTPUT))
def volumes(settings: OperatorSettings, output: str) -> None:
    """Show the volumes of all edge nodes.

    Each has its node, PV, claim and state. The hub knows them from its --kubeconfig or --manifests, and from its nodes.
    """
    from cli.operators import listings

    listings.volumes(settings, as_json=output == "json")


@cli.command(
    settings=asking(
        "FACTS",
        option("--node", type=NODE, help="Only the facts of this edge node."),
        option("--output=yaml", "-o", type=click.Choice(["yaml", "json"]), help=OUTPUT_HELP),
    )
)
def facts(settings: OperatorSettings, node: str | None, output: str) -> None:
    """Show the facts that the edge nodes have told the hub.

    These are the drivers and volumes in use of each node, the sizes of claims, the states of pods' volumes, and Events.
    Each fact is a Kubernetes object with the fields that the node told.
    """
    from cli.operators import listings

    listings.facts(settings, node=node or "", as_json=output == "json")


@cli.command(
    settings=asking(
        "FORGET",
        option(
            "--abandon-volumes",
            type=click.BOOL,
            help="List the Kubernetes objects of the node's own storage. The node must be denied and away.",
        ),
        option("--yes", type=click.BOOL, help="With --abandon-volumes: release them, then forget the node."),
        option(
            "--kubeconfig",
            type=TEXT,
            help="With --abandon-volumes: your kubeconfig file of the hub's cluster, or - for standard input.",
        ),
    )
)
@click.argument("node")
@click.argument("driver", default="")
def forget(
    settings: OperatorSettings, node: str, driver: str, *, abandon_volumes: bool, yes: bool, kubeconfig: str | None
) -> None:
    """Let the hub forget a node, or one driver of it.

    Use it for a NODE that is gone for good, or for a DRIVER that no longer runs there. First switch the machine off:
    other nodes go on with its open calls. The hub refuses while the node is connected, or while its agent still reports
    the driver. Volumes on the node are not deleted. With --abandon-volumes and --yes, the command first releases the
    PersistentVolumes, claims, attachments and snapshots of the node's own storage, except those that are to be
    retained. It does so with your --kubeconfig: the hub has no permission for it.
    """
    from cli.operators import abandon, order

    if not abandon_volumes:
        if yes or kubeconfig:
            raise click.UsageError("--yes and --kubeconfig need --abandon-volumes")
        order.run(settings, Forget(node=node, driver=driver))
        return
    if driver:
        raise click.UsageError("--abandon-volumes takes a whole node, without DRIVER")
    if not kubeconfig:
        raise click.UsageError(
            "--abandon-volumes needs --kubeconfig: the hub may not delete volumes, so pass a kubeconfig that may "
            "(docs/recovery.md#a-node-that-never-comes-back)"
        )
    abandon.run(settings, node=node, kubeconfig=kubeconfig, sure=yes)


@cli.command(settings=asking("TRUST"))
def trust(settings: OperatorSettings) -> None:
    """Tell the hub that its records are complete again.

    First see by `status` that every node and its drivers are back. After a hub has lost its records, it refuses calls
    that name no node, because it could send them to the wrong one. This command ends that.
    """
    from cli.operators import order

    order.run(settings, Trust())


@cli.command(settings=asking("DENY", option("--why", type=TEXT, help="The reason, for operators and the audit log.")))
@click.argument("subject", metavar="NODE|SERIAL")
def deny(settings: OperatorSettings, subject: str, why: str | None) -> None:
    """Refuse a node or a certificate from now on.

    Its links end at once. Use it for a stolen NODE or a leaked key. SERIAL is a certificate's number as openssl x509
    -noout -serial prints it: serial=1A2B. A denial lasts until `allow`, also when the hub restarts or forgets the node.
    """
    from cli.operators import order

    order.run(settings, Deny(subject=subject, why=why or ""))


@cli.command(settings=asking("ALLOW"))
@click.argument("subject", metavar="NODE|SERIAL")
def allow(settings: OperatorSettings, subject: str) -> None:
    """Undo a denial.

    A NODE that has joined gets its name back, and none of its certificates of before: it joins again with a new token.
    Of a NODE that is not denied, `status` no longer shows that a replaced certificate of it appeared. SERIAL is as of
    `deny`.
    """
    from cli.operators import order

    order.run(settings, Allow(subject=subject))


@cli.command(
    settings=asking(
        "FENCE",
        option("--why", type=TEXT, help="The reason, for operators and the audit log."),
        option("--yes", type=click.BOOL, help="Ask nothing, for scripts."),
    )
)
@click.argument("node")
def fence(settings: OperatorSettings, node: str, why: str | None, *, yes: bool) -> None:
    """Take a node that is away for dead.

    While a NODE is away, the hub detaches no volume that may be mounted there: two nodes would write to it. Use this
    command when the machine is off for certain, or cut off from its storage. Its volumes can then go to other nodes.
    The fence ends when the node shows a sign of life. Then see `status`: its mounts are no longer valid. If another
    machine has joined as NODE, the command is about the earlier machine: that it is off, or was started anew since.
    """
    from cli.operators import order

    order.fence(settings, Fence(node=node, why=why or ""), sure=yes)


@cli.command(settings=asking("UNFENCE"))
@click.argument("node")
def unfence(settings: OperatorSettings, node: str) -> None:
    """Take a fence back, or settle it.

    The hub guards the volumes of NODE again. If the node is back, this ends the warning in `status`. Volumes that were
    detached meanwhile stay detached.
    """
    from cli.operators import order

    order.run(settings, Unfence(node=node))


@cli.command(settings=asking("DENIALS", OUTPUT))
def denials(settings: OperatorSettings, output: str) -> None:
    """Show the denied nodes and certificates."""
    from cli.operators import listings

    listings.denials(settings, as_json=output == "json")


@cli.command(
    settings=asking(
        "AUDIT",
        OUTPUT,
        option("--driver", type=Text(driver_name, "NAME"), help="Only this driver. Unset: all drivers."),
        option("--delete", type=TEXT, help="Delete the orphan with this id, after a question."),
        option("--yes", type=click.BOOL, help="With --delete: ask nothing, for scripts."),
    )
)
def audit(settings: OperatorSettings, output: str, driver: str | None, delete: str | None, *, yes: bool) -> None:
    """Find volumes that everybody has forgotten, and other leaks.

    The hub compares PersistentVolumes and VolumeSnapshotContents, its own records, the lists of the nodes' drivers, and
    their mounts. An orphan is a volume that nobody refers to. A ghost is a PersistentVolume whose volume is gone. A
    stray is mounted, and no pod wants it. A doubt is a create whose outcome is not known, or, with
    --placement=shared, another change. Nodes that are away, and drivers that cannot list, are shown as not asked.
    Nothing is changed without --delete. For the log of who did what see the lines of the logger csi_bridge.audit.
    """
    from cli.operators import audit as of_hub

    if delete is None:
        of_hub.run(settings, driver=driver or "", as_json=output == "json")
    else:
        of_hub.delete(settings, delete, driver=driver or "", sure=yes)


@cli.group(context_settings=CONTEXT_SETTINGS)
def token() -> None:
    """Make, list and revoke the tokens with which nodes join the hub."""


@token.command(
    "create",
    settings=asking(
        "TOKEN_CREATE",
        option(
            "--node=*",
            type=Text(words, "PATTERN"),
            help="Name of the new node that may join, or a pattern such as edge-*: every new node of such a name.",
        ),
        option(
            "--replace",
            type=click.BOOL,
            help="The node of --node exists, and a machine joins in its place: a new one, or the same one again. Its "
            "certificates of before are void once it connects. What the earlier machine had in use stays in use until "
            "csi-bridge fence.",
        ),
        option(
            "--driver",
            type=Text(driver_name, "NAME"),
            multiple=True,
            help="CSI driver that the nodes may report. Unset: every driver.",
        ),
        option("--ttl=1h", type=duration_type("1s", "8760h"), help="Time in which nodes can use the token."),
        option("--uses=1", type=click.IntRange(1, 1_000_000), unit="nodes", help="Nodes that may join."),
    ),
)
def token_create(
    settings: OperatorSettings, node: str, driver: tuple[str, ...], *, ttl_s: float, uses: int, replace: bool
) -> None:
    """Make a token, and print it.

    It is one line, for `csi-bridge edge join` on the node: the hub's address, the pin of its CA, and a secret. Treat it
    like a password, because its holder can join.
    """
    from cli.operators import order

    asked = CreateToken(node=node, drivers=list(driver), ttl_s=math.ceil(ttl_s), uses=uses, replace=replace)
    order.create_token(settings, asked)


@token.command("list", settings=asking("TOKEN_LIST", OUTPUT))
def token_list(settings: OperatorSettings, output: str) -> None:
    """Show the tokens, without their secrets.

    A token stays in the list for 30 days after its end.
    """
    from cli.operators import listings

    listings.tokens(settings, as_json=output == "json")


@token.command("revoke", settings=asking("TOKEN_REVOKE"))
@click.argument("token_id", metavar="ID")
def token_revoke(settings: OperatorSettings, token_id: str) -> None:
    """Revoke a token by its ID. The nodes that have joined with it stay: see `deny`."""
    from cli.operators import order

    order.run(settings, RevokeToken(id=token_id))


@cli.command()
def demo() -> None:
    """Show a volume's whole life on this machine.

    The demo starts a hub, a proxy driver, an agent and an example driver, and cuts the link between them.
    """
    try:
        import grpc  # noqa: F401  # the example driver's
    except ModuleNotFoundError as error:
        raise click.UsageError(
            f"the module {error.name} is not installed; it comes with csi-bridge's extra `demo`: pip install '.[demo]'"
        ) from error
    from cli.demo import story

    sys.exit(story.run())


def main() -> None:
    cli.main(prog_name="csi-bridge")
