"""The settings of a question for what the hub knows much of."""

from dataclasses import dataclass

from cli.operator_settings import OperatorSettings
from common.parsers import choice
from common.settings import setting


@dataclass(frozen=True, kw_only=True)
class ListingSettings(OperatorSettings):
    """What `csi-bridge nodes` and `csi-bridge volumes` take."""

    output: str = setting(
        "table", parse=choice("table", "json"), aliases=("-o",), help="Form of the output; json is for programs."
    )


@dataclass(frozen=True, kw_only=True)
class NodesSettings(ListingSettings):
    """`csi-bridge nodes`."""

    command = "nodes"


@dataclass(frozen=True, kw_only=True)
class VolumesSettings(ListingSettings):
    """`csi-bridge volumes`."""

    command = "volumes"
