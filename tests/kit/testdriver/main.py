"""The command of the test driver: reads the flags and runs it. Exit code 2 for a flag with a wrong value."""

import logging
import os
import socket
import sys
from pathlib import Path
from typing import Any

import click

from examples.dirdriver.access import DIRECTORY
from examples.dirdriver.settings import SettingsError
from tests.kit.testdriver.access import FILESYSTEM
from tests.kit.testdriver.server import serve
from tests.kit.testdriver.settings import Settings

_FILESYSTEMS = {"directory": DIRECTORY, "image": FILESYSTEM}


@click.command(context_settings={"show_default": True})
@click.option("--endpoint", envvar="CSI_ENDPOINT", required=True, help="Where to listen: unix:///path/csi.sock.")
@click.option("--state-dir", type=click.Path(path_type=Path), required=True, help="Records, volumes and snapshots.")
@click.option("--node-id", default=socket.gethostname, show_default="host name", help="This node.")
@click.option("--drivername", "driver_name", default="dirdriver.csi", help="The plugin's name.")
@click.option(
    "--fs",
    "filesystem",
    type=click.Choice(list(_FILESYSTEMS)),
    default="directory",
    help="What a filesystem volume is: a directory, or a sparse file with ext4 or xfs on a loop device.",
)
@click.option("--capacity", "capacity_bytes", type=int, default=100 << 30, help="All volumes together, in bytes.")
@click.option("--max-volumes-per-node", type=click.IntRange(min=0), default=0, help="Attachments; 0: no limit.")
@click.option("--controller/--no-controller", default=True, help="Whether there are more services than the node's.")
@click.option("--attach/--no-attach", default=True, help="Whether volumes are attached before a node uses them.")
@click.option("--stage/--no-stage", default=True, help="Whether volumes are staged before they are published.")
@click.option("--node-expand/--no-node-expand", default=True, help="Whether the node says that it can expand volumes.")
@click.option("--topology/--no-topology", default=True, help="Whether a volume lives on one node.")
@click.option(
    "--snapshot-topology/--no-snapshot-topology", default=True, help="Whether a snapshot says where it lives."
)
@click.option("--multi-writer/--no-multi-writer", default=True, help="Whether SINGLE_NODE_MULTI_WRITER is known.")
@click.option("--volume-condition", is_flag=True, help="ListVolumes tells the condition of an older CSI.")
@click.option("--raw", is_flag=True, help="A volume made for mounting can be a block device.")
@click.option("--mount-group", is_flag=True, help="The driver applies a pod's fsGroup.")
@click.option(
    "--mutable-parameter", "mutable_parameters", multiple=True, help="ControllerModifyVolume accepts it (repeatable)."
)
@click.option(
    "--fault", "faults", multiple=True, help="METHOD=FAULT, e.g. CreateVolume=delay:25s (repeatable; see `faults`)."
)
@click.option(
    "--fault-file", type=click.Path(path_type=Path), help="Faults read at every call.  [default: faults in --state-dir]"
)
@click.option("--call-log", type=click.Path(path_type=Path), help="Where each call is noted, in JSON lines.")
@click.option("--verbose", "-v", is_flag=True, help="Log every call.")
def main(*, filesystem: str, state_dir: Path, verbose: bool, **flags: Any) -> None:
    """A CSI driver with all features, and with faults, for tests."""
    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    settings = Settings(filesystem=_FILESYSTEMS[filesystem], state_dir=state_dir.absolute(), **flags)
    try:
        settings.check()
        serve(settings)
    except SettingsError as error:
        raise click.UsageError(str(error)) from error
    # Threads that still work would keep the process; what they leave is what a crash leaves.
    logging.shutdown()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
