"""The command line: `csi-bridge` and its sub-commands. Each imports what it runs only when it runs."""

import sys

import click

from cli.call_settings import CallSettings
from cli.doctor_settings import DoctorSettings
from cli.edge_volumes_settings import EdgeVolumesSettings
from cli.goflags import from_go
from cli.listing_settings import NodesSettings, VolumesSettings
from cli.options import CONTEXT_SETTINGS, settings_options
from cli.order_settings import ForgetSettings, TrustSettings
from cli.status_settings import StatusSettings
from cloud.driver_settings import DriverSettings
from cloud.hub_settings import HubSettings
from common.settings import specs
from common.version import VERSION
from edge.settings import AgentSettings


@click.group(context_settings=CONTEXT_SETTINGS)
@click.version_option(VERSION, prog_name="csi-bridge")
def cli() -> None:
    """Run a vendor's CSI driver on edge nodes that the cloud cannot reach.

    In the cloud: `hub`, and one `driver` beside the sidecars of each CSI driver. On each edge node: `edge run`.
    """


@cli.command(context_settings=CONTEXT_SETTINGS)
@settings_options(HubSettings)
def hub(settings: HubSettings) -> None:
    """Take links from edge agents and proxy drivers, and carry calls between them."""
    from cli import process
    from cloud import uds_hub

    process.run(settings, uds_hub.run, name="hub")


@cli.command(context_settings=CONTEXT_SETTINGS)
@settings_options(DriverSettings)
def driver(settings: DriverSettings) -> None:
    """Be the CSI driver that the stock sidecars talk to, and forward their calls to the hub.

    Takes the flags of KubeEdge's csidriver as well, also with one dash.
    """
    from cli import process
    from cloud import csi_proxy_driver

    process.run(settings, csi_proxy_driver.run, name="proxy driver")


@cli.group(context_settings=CONTEXT_SETTINGS)
def edge() -> None:
    """What runs on an edge node."""


@edge.command("run", context_settings=CONTEXT_SETTINGS)
@settings_options(AgentSettings)
def edge_run(settings: AgentSettings) -> None:
    """Keep a link to the hub, call the drivers of this node for it, and mount the volumes of this node's pods."""
    from cli import process
    from edge import agent

    process.run(settings, agent.run, name="edge agent")


@edge.command("volumes", context_settings=CONTEXT_SETTINGS)
@settings_options(EdgeVolumesSettings)
def edge_volumes(settings: EdgeVolumesSettings) -> None:
    """Show the volumes of this node's pods, with their paths and states, or wait until they are published.

    Exit code 1: the agent does not answer, or --wait ran out of time.
    """
    from cli import edge_volumes as of_node

    sys.exit(of_node.run(settings))


@cli.command(context_settings=CONTEXT_SETTINGS)
@click.argument("method")
@click.argument("request_json", metavar="[JSON]", default="{}")
@settings_options(CallSettings)
def call(settings: CallSettings, method: str, request_json: str) -> None:
    """Make one CSI call by hand, through the hub on this host.

    METHOD is CreateVolume, Controller/CreateVolume or a whole path; JSON is the request (@FILE reads a file, - standard
    input). Prints the answer as JSON, without secrets. Exit code 1: the call did not end with OK.
    """
    from cli import call as by_hand

    sys.exit(by_hand.run(settings, name=method, text=request_json))


@cli.command(context_settings=CONTEXT_SETTINGS)
@settings_options(StatusSettings)
def status(settings: StatusSettings) -> None:
    """Show what the hub on this host knows: its nodes, their drivers, the proxy drivers, and what is in conflict."""
    from cli import status as of_hub

    sys.exit(of_hub.run(settings))


@cli.command(context_settings=CONTEXT_SETTINGS)
@settings_options(DoctorSettings)
def doctor(settings: DoctorSettings) -> None:
    """Look at the hub, proxy drivers and edge agent on this host, and say what is wrong and what to do.

    Finds them by their usual sockets, or by those named. Run it as root, or as their user. Exit code 1: something is
    wrong.
    """
    from cli.doctor import command

    sys.exit(command.run(settings))


@cli.command(context_settings=CONTEXT_SETTINGS)
@settings_options(NodesSettings)
def nodes(settings: NodesSettings) -> None:
    """Show every edge node that the hub on this host knows: since when it is there or away, and what failed last."""
    from cli import nodes as of_hub

    sys.exit(of_hub.run(settings))


@cli.command(context_settings=CONTEXT_SETTINGS)
@settings_options(VolumesSettings)
def volumes(settings: VolumesSettings) -> None:
    """Show the volumes of the edge nodes that the hub on this host knows of: node, PV, claim and state of each.

    The hub knows them from its --kubeconfig or --manifests, and from what its nodes tell.
    """
    from cli import volumes as of_hub

    sys.exit(of_hub.run(settings))


@cli.command(context_settings=CONTEXT_SETTINGS)
@click.argument("node")
@click.argument("driver", default="")
@settings_options(ForgetSettings)
def forget(settings: ForgetSettings, node: str, driver: str) -> None:
    """Let the hub on this host forget NODE, which is gone for good, or only that it runs DRIVER.

    Refused while the node is connected, or while its agent still reports the driver. Volumes there are not deleted.
    """
    from cli import order

    sys.exit(order.run(settings, order.forget(settings, node=node, driver=driver)))


@cli.command(context_settings=CONTEXT_SETTINGS)
@settings_options(TrustSettings)
def trust(settings: TrustSettings) -> None:
    """Tell the hub on this host that it knows every node and its drivers again, after it had lost what it knew.

    Look at `status` first: until then, a call that names no node is refused rather than sent to the wrong one.
    """
    from cli import order

    sys.exit(order.run(settings, order.trust(settings)))


@cli.command(context_settings=CONTEXT_SETTINGS)
def demo() -> None:
    """Tell a volume's whole life on this machine: hub, proxy driver, agent, example driver, and a link that is cut."""
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
