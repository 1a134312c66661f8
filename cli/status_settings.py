"""The settings of a question for the hub's state."""

from dataclasses import dataclass

from cli.listing_settings import ListingSettings
from common.parsers import switch
from common.settings import setting


@dataclass(frozen=True, kw_only=True)
class StatusSettings(ListingSettings):
    """`csi-bridge status`."""

    command = "status"

    json: bool = setting("false", parse=switch, hidden=True, help="The same as --output=json.")
