"""The settings of a call by hand."""

from dataclasses import dataclass

from cli.operator_settings import OperatorSettings
from common.parsers import driver_name, node_name
from common.settings import REQUIRED, setting


@dataclass(frozen=True, kw_only=True)
class CallSettings(OperatorSettings):
    """`csi-bridge call`."""

    command = "call"

    driver: str = setting(REQUIRED, parse=driver_name, help="Name of the driver.")
    node: str | None = setting(
        None, parse=node_name, help="Edge node that gets the call. Needed if the driver runs on several."
    )
