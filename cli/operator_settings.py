"""The settings of whoever asks the hub on this host by hand."""

from dataclasses import dataclass

from common.endpoint import Endpoint, hub_endpoint
from common.limits import Limits
from common.parsers import Parser, bounded, duration, size
from common.settings import Settings, setting


def _local_hub(text: str) -> Endpoint:
    if not text.startswith(("/", "unix:")):
        raise ValueError(_BY_SOCKET)
    return hub_endpoint(text)


_BY_SOCKET = (
    "must be the hub's UNIX socket (its --uds), unix:///PATH: commands for operators do not go over the network; run "
    "this on the hub's host, or in its pod"
)

local_hub = Parser(_local_hub, "unix:///PATH")
"""Reads the UNIX socket of a hub on this host; raises ValueError in words."""


@dataclass(frozen=True, kw_only=True)
class OperatorSettings(Settings):
    """What every command takes that asks the hub on this host."""

    hub: Endpoint = setting(
        "unix:///var/lib/kubeedge/kubeedge.sock",
        parse=local_hub,
        help="UNIX socket of the hub on this host (its --uds).",
    )
    timeout_s: float = setting("60s", parse=duration, help="Time limit for the answer.")
    max_message_bytes: int = setting(
        "4MiB",
        parse=bounded(size, low="64KiB", high="64MiB"),
        group="tuning",
        help="Largest message that is taken, as on the hub.",
    )

    def limits(self) -> Limits:
        """The session's limits: those of `Limits`, with a window that holds the largest message twice."""
        window = max(Limits().session_window_bytes, 2 * self.max_message_bytes)
        return Limits(max_message_bytes=self.max_message_bytes, session_window_bytes=window)
