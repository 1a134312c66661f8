"""The settings of a question for the volumes of this node."""

from dataclasses import dataclass
from pathlib import Path

from common.parsers import choice, duration, switch, unix_path, words
from common.settings import Settings, setting


@dataclass(frozen=True, kw_only=True)
class EdgeVolumesSettings(Settings):
    """`csi-bridge edge volumes`."""

    command = "edge-volumes"

    pod: str | None = setting(
        None, parse=words, help="Only the volumes of this pod: NAMESPACE/NAME, or NAME in the namespace default."
    )
    wait: bool = setting(
        "false",
        parse=switch,
        help="Wait until every volume is published (with --pod: of that pod). Progress goes to stderr.",
    )
    output: str = setting(
        "table", parse=choice("table", "json"), aliases=("-o",), help="Form of the output; json is for programs."
    )
    timeout_s: float = setting("5m", parse=duration, help="Time limit for --wait, and for the agent's answer.")
    status: Path = setting(
        "unix:///run/csi-bridge/edge.sock", parse=unix_path, help="Status socket of the agent (its --status)."
    )

    @property
    def wanted_pod(self) -> tuple[str, str] | None:
        """Namespace and name of --pod."""
        if self.pod is None:
            return None
        namespace, slash, name = self.pod.partition("/")
        return (namespace, name) if slash else ("default", namespace)
