"""The settings of a call by hand."""

from dataclasses import dataclass

from cli.operator_settings import OperatorSettings
from common.parsers import driver_name, node_name
from common.settings import REQUIRED, setting


@dataclass(frozen=True, kw_only=True)
class CallSettings(OperatorSettings):
    """`csi-bridge call`."""

    command = "call"

    driver: str = setting(REQUIRED, parse=driver_name, help="The driver's name.")
    node: str | None = setting(None, parse=node_name, help="The edge node; needed once the driver runs on several.")
