"""The settings of a question for the hub's state."""

from dataclasses import dataclass

from cli.operator_settings import OperatorSettings
from common.parsers import switch
from common.settings import setting


@dataclass(frozen=True, kw_only=True)
class StatusSettings(OperatorSettings):
    """`csi-bridge status`."""

    command = "status"

    json: bool = setting("false", parse=switch, help="Print the whole state as one JSON object.")
