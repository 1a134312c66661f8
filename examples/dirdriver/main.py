"""The command `dirdriver`: reads the flags and runs the driver. Exit code 2 for a flag with a wrong value."""

import logging
import socket
import sys
from pathlib import Path

import click

try:
    from examples.dirdriver.server import serve
    from examples.dirdriver.settings import Settings, SettingsError
    from examples.dirdriver.sizes import GIB
except ModuleNotFoundError as error:
    sys.stderr.write(
        f"Error: the module {error.name} is not installed; it comes with csi-bridge's extra `demo`: "
        "pip install '.[demo]'\n"
    )
    raise SystemExit(2) from error


@click.command(context_settings={"auto_envvar_prefix": "DIRDRIVER", "show_default": True})
@click.option("--endpoint", envvar="CSI_ENDPOINT", required=True, help="Where to listen: unix:///path/csi.sock.")
@click.option("--state-dir", type=click.Path(path_type=Path), required=True, help="Directory of all volumes.")
@click.option("--node-id", default=socket.gethostname, show_default="host name", help="This node.")
@click.option("--drivername", default="dirdriver.csi", help="The plugin's name.")
@click.option("--capacity-gib", type=click.IntRange(min=1), default=100, help="Size of all volumes together, in GiB.")
@click.option("--verbose", "-v", is_flag=True, help="Log every call.")
def main(*, endpoint: str, state_dir: Path, node_id: str, drivername: str, capacity_gib: int, verbose: bool) -> None:
    """A small CSI driver that keeps volumes in directories."""
    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    settings = Settings(
        endpoint=endpoint,
        state_dir=state_dir.absolute(),
        node_id=node_id,
        driver_name=drivername,
        capacity_bytes=capacity_gib * GIB,
    )
    try:
        settings.check()
        serve(settings)
    except SettingsError as error:
        raise click.UsageError(str(error)) from error


if __name__ == "__main__":
    main()
