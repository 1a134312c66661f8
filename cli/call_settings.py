"""The settings of a call by hand."""

from dataclasses import dataclass

from common.endpoint import Endpoint, hub_endpoint
from common.parsers import duration, words
from common.settings import REQUIRED, Settings, setting


@dataclass(frozen=True, kw_only=True)
class CallSettings(Settings):
    """`csi-bridge call`."""

    command = "call"

    hub: Endpoint = setting(
        "unix:///var/lib/kubeedge/kubeedge.sock", parse=hub_endpoint, help="The hub's UNIX socket (its --uds)."
    )
    driver: str = setting(REQUIRED, parse=words, help="The driver's name.")
    node: str | None = setting(None, parse=words, help="The edge node; needed once the driver runs on several.")
    timeout_s: float = setting("60s", parse=duration, help="How long to wait for the answer.")

    def __post_init__(self) -> None:
        """Check that the hub is on this host."""
        if self.hub.path is None:
            raise self.wrong("hub", "operators come by the hub's UNIX socket alone: unix:///PATH")
