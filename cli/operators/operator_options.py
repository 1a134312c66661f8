"""The options of every command for operators, which asks the hub on this host."""

from dataclasses import dataclass

from cli.options import Option, Options, Text, duration_type, option, size_type
from common.net.endpoint import Endpoint, hub_endpoint
from common.session.limits import Limits


def _local_hub(text: str) -> Endpoint:
    if not text.startswith(("/", "unix:")):
        raise ValueError(
            "must be the hub's UNIX socket (its --uds), unix:///PATH: commands for operators do not go over the "
            "network; run this on the hub's host, or in its pod"
        )
    return hub_endpoint(text)


LOCAL_HUB = Text(_local_hub, "unix:///PATH")  # the type of an option with the UNIX socket of a hub on this host

OPERATOR_OPTIONS = (
    option(
        "--hub=unix:///var/lib/kubeedge/kubeedge.sock",
        envvar="CSI_BRIDGE_HUB",
        type=LOCAL_HUB,
        help="UNIX socket of the hub on this host (its --uds).",
    ),
    option("--timeout=60s", type=duration_type(), help="Time limit for the answer."),
    option(
        "--max-message=4MiB",
        type=size_type("64KiB", "64MiB"),
        group="tuning",
        help="Largest message that is taken, as on the hub. status, nodes, volumes and facts ignore it.",
    ),
)


@dataclass(frozen=True, kw_only=True)
class OperatorSettings:
    """The values of these options."""

    hub: Endpoint
    timeout_s: float
    max_message_bytes: int

    def limits(self) -> Limits:
        # The window holds the largest message twice.
        window = max(Limits().session_window_bytes, 2 * self.max_message_bytes)
        return Limits(max_message_bytes=self.max_message_bytes, session_window_bytes=window)


def asking(command: str, *more: Option) -> Options[OperatorSettings]:
    return Options(OperatorSettings, command, *OPERATOR_OPTIONS, *more)
