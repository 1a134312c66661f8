"""The command of the test driver: reads the flags and runs it. Exit code 2 for a flag with a wrong value."""

import asyncio
import logging
import os
import socket
import sys
from pathlib import Path
from typing import Any

import click

from examples.dirdriver.settings import SettingsError
from tests.kit.testdriver.access import Layout
from tests.kit.testdriver.server import serve
from tests.kit.testdriver.settings import Settings
from tests.kit.testdriver.units import parse_size

_FILESYSTEMS = {"directory": Layout.DIRECTORY, "image": Layout.FILESYSTEM}


class Size(click.ParamType[int]):
    """A number of bytes, as people write it."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Bytes, from a flag's text."""
        try:
            return value if isinstance(value, int) else parse_size(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


@click.command(context_settings={"auto_envvar_prefix": "TESTDRIVER", "show_default": True})
@click.option("--endpoint", envvar="CSI_ENDPOINT", required=True, help="Where to listen: unix:///path/csi.sock.")
@click.option("--state-dir", type=click.Path(path_type=Path), required=True, help="Database, volumes and snapshots.")
@click.option("--node-id", default=socket.gethostname, show_default="host name", help="This node.")
@click.option("--drivername", default="dirdriver.csi", help="The plugin's name.")
@click.option(
    "--fs",
    type=click.Choice(list(_FILESYSTEMS)),
    default="directory",
    help="What a filesystem volume is: a directory, or a sparse file with ext4 or xfs on a loop device.",
)
@click.option("--capacity", type=Size(), default="100Gi", help="All volumes together (bytes, Ki, Mi, Gi, Ti).")
@click.option("--max-volume-size", type=Size(), default="0", help="One volume (bytes, Ki, Mi, Gi, Ti); 0: --capacity.")
@click.option("--max-volumes-per-node", type=click.IntRange(min=0), default=0, help="Attachments; 0: no limit.")
@click.option("--attach/--no-attach", default=True, help="Whether volumes are attached before a node uses them.")
@click.option("--stage/--no-stage", default=True, help="Whether volumes are staged before they are published.")
@click.option("--node-expand/--no-node-expand", default=True, help="Whether the node says that it can expand volumes.")
@click.option("--topology/--no-topology", default=True, help="Whether a volume lives on one node.")
@click.option(
    "--snapshot-topology/--no-snapshot-topology", default=True, help="Whether a snapshot says where it lives, too."
)
@click.option("--metadata/--no-metadata", default=True, help="Whether SnapshotMetadata is served.")
@click.option("--multi-writer/--no-multi-writer", default=True, help="Whether SINGLE_NODE_MULTI_WRITER is known.")
@click.option(
    "--volume-condition/--no-volume-condition", default=False, help="Whether ListVolumes tells an old CSI's condition."
)
@click.option("--raw/--no-raw", default=False, help="Whether a volume made for mounting can be a block device.")
@click.option("--mount-group/--no-mount-group", default=False, help="Whether the driver applies a pod's fsGroup.")
@click.option("--mutable-parameter", multiple=True, help="A name that ControllerModifyVolume accepts (repeatable).")
@click.option(
    "--metadata-ranges", type=click.IntRange(min=0), default=0, help="Ranges every snapshot pretends to have."
)
@click.option("--limits/--no-limits", default=True, help="Whether the spec's limits on strings and maps are kept.")
@click.option("--fault", multiple=True, help="METHOD=FAULT, e.g. CreateVolume=delay:25s (repeatable; see the README).")
@click.option(
    "--fault-file", type=click.Path(path_type=Path), help="Faults read at every call.  [default: faults in --state-dir]"
)
@click.option("--call-log", type=click.Path(path_type=Path), help="Where each call is noted, in JSON lines.")
@click.option("--verbose", "-v", is_flag=True, help="Log every call.")
def main(*, fs: str, drivername: str, capacity: int, max_volume_size: int, **flags: Any) -> None:
    """A CSI driver with every feature, and with faults, for tests."""
    logging.basicConfig(
        level=logging.DEBUG if flags.pop("verbose") else logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    settings = Settings(
        filesystem=_FILESYSTEMS[fs],
        driver_name=drivername,
        capacity_bytes=capacity,
        max_volume_bytes=max_volume_size,
        state_dir=flags.pop("state_dir").absolute(),
        mutable_parameters=flags.pop("mutable_parameter"),
        faults=flags.pop("fault"),
        **flags,
    )
    try:
        settings.check()
        asyncio.run(serve(settings))
    except SettingsError as error:
        raise click.UsageError(str(error)) from error
    # Threads that are still copying would keep the process; what they leave is what a crash leaves.
    logging.shutdown()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
