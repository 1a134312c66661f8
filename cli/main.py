"""The command line: `csi-bridge` and its sub-commands. Each imports what it runs only when it runs."""

import sys

import click

from cli.call_settings import CallSettings
from cli.doctor_settings import DoctorSettings
from cli.edge_volumes_settings import EdgeVolumesSettings
from cli.goflags import from_go
from cli.listing_settings import NodesSettings, VolumesSettings
from cli.options import CONTEXT_SETTINGS, SettingsGroup, settings_options
from cli.order_settings import ForgetSettings, TrustSettings
from cli.status_settings import StatusSettings
from cloud.driver_settings import DriverSettings
from cloud.hub_settings import HubSettings
from common.settings import specs
from common.version import VERSION
from edge.settings import AgentSettings

_COMPLETION = """\b
Shell completion in bash (in zsh and fish with zsh_source and fish_source):
  eval "$(_CSI_BRIDGE_COMPLETE=bash_source csi-bridge)"
"""


@click.group(cls=SettingsGroup, context_settings=CONTEXT_SETTINGS, epilog=_COMPLETION)
@click.version_option(VERSION, prog_name="csi-bridge")
def cli() -> None:
    """Run a vendor's CSI driver on edge nodes that the cloud cannot reach.

    In the cloud run `hub`, and one `driver` beside the sidecars of each CSI driver. On each edge node run `edge run`.
    If something does not work, run `doctor` there. The other commands ask the hub; run them on its host or in its pod.
    """


@cli.command(context_settings=CONTEXT_SETTINGS)
@settings_options(HubSettings)
def hub(settings: HubSettings) -> None:
    """Run the hub in the cloud.

    It carries calls between proxy drivers and edge agents, and tells the agents of their nodes' pods and volumes.
    """
    from cli import process
    from cloud import uds_hub

    process.run(settings, uds_hub.run, name="hub")


@cli.command(context_settings=CONTEXT_SETTINGS)
@settings_options(DriverSettings)
def driver(settings: DriverSettings) -> None:
    """Run a proxy driver: the stock sidecars call it.

    It forwards their calls to the hub. It also takes the flags of KubeEdge's csidriver, with one dash or two.
    """
    from cli import process
    from cloud import csi_proxy_driver

    process.run(settings, csi_proxy_driver.run, name="proxy driver")


@cli.group(context_settings=CONTEXT_SETTINGS)
def edge() -> None:
    """Run the agent of an edge node, or show its volumes."""


@edge.command("run", context_settings=CONTEXT_SETTINGS)
@settings_options(AgentSettings)
def edge_run(settings: AgentSettings) -> None:
    """Run the agent of this edge node.

    It keeps a link to the hub and calls the drivers of this node for it. On a node without a kubelet it also mounts the
    volumes of the node's pods.
    """
    from cli import process
    from edge import agent

    process.run(settings, agent.run, name="edge agent")


@edge.command("volumes", context_settings=CONTEXT_SETTINGS)
@settings_options(EdgeVolumesSettings)
def edge_volumes(settings: EdgeVolumesSettings) -> None:
    """Show the volumes of this node's pods.

    Each has its path and state. With --wait the command ends when the volumes are published. Exit code 1: the agent
    does not answer, or the time limit of --wait is over.
    """
    from cli import edge_volumes as of_node

    sys.exit(of_node.run(settings))


@cli.command(context_settings=CONTEXT_SETTINGS)
@click.argument("method")
@click.argument("request_json", metavar="[JSON]", default="{}")
@settings_options(CallSettings)
def call(settings: CallSettings, method: str, request_json: str) -> None:
    """Make one CSI call by hand, through the hub.

    METHOD is CreateVolume, Controller/CreateVolume or a whole path. JSON is the request; @FILE reads it from a file,
    and - from standard input. The answer is printed as JSON, without secrets. Exit code 1: the call did not end with
    OK.
    """
    from cli import call as by_hand

    sys.exit(by_hand.run(settings, name=method, text=request_json))


@cli.command(context_settings=CONTEXT_SETTINGS)
@settings_options(StatusSettings)
def status(settings: StatusSettings) -> None:
    """Show an overview of the hub, and all its problems.

    The overview lists the edge nodes with their drivers, and the proxy drivers. For the calls and failures of each node
    see `nodes`.
    """
    from cli import status as of_hub

    sys.exit(of_hub.run(settings))


@cli.command(context_settings=CONTEXT_SETTINGS)
@settings_options(DoctorSettings)
def doctor(settings: DoctorSettings) -> None:
    """Check this host for faults, and suggest remedies.

    It looks at the hub, the proxy drivers and the edge agent that it finds by their usual sockets, or by those given.
    Run it as root, or as their user. Exit code 1: there is a fault.
    """
    from cli.doctor import command

    sys.exit(command.run(settings))


@cli.command(context_settings=CONTEXT_SETTINGS)
@settings_options(NodesSettings)
def nodes(settings: NodesSettings) -> None:
    """Show each edge node in detail, with its last failed call.

    Each node has its address and the number of calls under way. Below stand the last failed call of each node, until a
    later call of that driver succeeds there, and the peers that the hub refused.
    """
    from cli import node_list as of_hub

    sys.exit(of_hub.run(settings))


@cli.command(context_settings=CONTEXT_SETTINGS)
@settings_options(VolumesSettings)
def volumes(settings: VolumesSettings) -> None:
    """Show the volumes of all edge nodes.

    Each has its node, PV, claim and state. The hub knows them from its --kubeconfig or --manifests, and from its nodes.
    """
    from cli import volumes as of_hub

    sys.exit(of_hub.run(settings))


@cli.command(context_settings=CONTEXT_SETTINGS)
@click.argument("node")
@click.argument("driver", default="")
@settings_options(ForgetSettings)
def forget(settings: ForgetSettings, node: str, driver: str) -> None:
    """Let the hub forget a node, or one driver of it.

    Use it for a NODE that is gone for good, or for a DRIVER that no longer runs there. The hub refuses while the node
    is connected, or while its agent still reports the driver. Volumes on the node are not deleted.
    """
    from cli import order

    sys.exit(order.run(settings, order.forget(settings, node=node, driver=driver)))


@cli.command(context_settings=CONTEXT_SETTINGS)
@settings_options(TrustSettings)
def trust(settings: TrustSettings) -> None:
    """Tell the hub that its records are complete again.

    First see by `status` that every node and its drivers are back. After a hub has lost its records, it refuses calls
    that name no node, because it could send them to the wrong one. This command ends that.
    """
    from cli import order

    sys.exit(order.run(settings, order.trust(settings)))


@cli.command(context_settings=CONTEXT_SETTINGS)
def demo() -> None:
    """Show a volume's whole life on this machine.

    The demo starts a hub, a proxy driver, an agent and an example driver, and cuts the link between them.
    """
    try:
        from cli.demo import story
    except ModuleNotFoundError as error:
        raise click.UsageError(
            f"the module {error.name} is not installed; it comes with csi-bridge's extra `demo`: pip install '.[demo]'"
        ) from error

    sys.exit(story.run())


def main() -> None:
    """The console script."""
    argv = sys.argv[1:]
    if argv[:1] == ["driver"]:
        found = specs(DriverSettings)
        names = [alias.lstrip("-") for spec in found for alias in (spec.flag, *spec.aliases) if spec.metavar]
        switches = [spec.flag.lstrip("-") for spec in found if not spec.metavar]
        argv = ["driver", *from_go(argv[1:], names=names, switches=switches)]
    cli.main(args=argv, prog_name="csi-bridge")
