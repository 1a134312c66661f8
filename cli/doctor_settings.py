"""The doctor's settings."""

from dataclasses import dataclass
from pathlib import Path

from cli.operator_settings import local_hub
from common.endpoint import Endpoint
from common.parsers import bounded, choice, duration, unix_path, words
from common.settings import Settings, setting


@dataclass(frozen=True, kw_only=True)
class DoctorSettings(Settings):
    """`csi-bridge doctor`."""

    command = "doctor"

    hub: Endpoint | None = setting(
        None,
        parse=local_hub,
        help="UNIX socket of a hub on this host (its --uds). Unset: its usual path.",
    )
    endpoint: tuple[Path, ...] = setting(
        (),
        parse=unix_path,
        repeatable=True,
        help="Socket of a proxy driver on this host (its --endpoint). Unset: its usual path.",
    )
    status: Path | None = setting(
        None,
        parse=unix_path,
        help="Status socket of an edge agent on this host (its --status). Unset: its usual path.",
    )
    kubeconfig: str | None = setting(
        None,
        parse=words,
        help="Kubernetes cluster to look at beside the hub: a kubeconfig file, or in-cluster. Unset: the hub's own.",
    )
    output: str = setting(
        "text", parse=choice("text", "json"), aliases=("-o",), help="Form of the output; json is for programs."
    )
    timeout_s: float = setting(
        "10s", parse=bounded(duration, low="100ms", high="10m"), help="Time limit for each check."
    )
