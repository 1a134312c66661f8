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
        help="The UNIX socket of a hub on this host (its --uds). Looked for in its usual place.",
    )
    endpoint: tuple[Path, ...] = setting(
        (),
        parse=unix_path,
        repeatable=True,
        help="The socket of a proxy driver on this host (its --endpoint). Looked for in its usual place.",
    )
    status: Path | None = setting(
        None,
        parse=unix_path,
        help="The status socket of an edge agent on this host (its --status). Looked for in its usual place.",
    )
    kubeconfig: str | None = setting(
        None,
        parse=words,
        help="The Kubernetes cluster to look at beside the hub: a kubeconfig file, or in-cluster. The hub's own, if it "
        "has one.",
    )
    output: str = setting(
        "text", parse=choice("text", "json"), aliases=("-o",), help="text for people, json for programs."
    )
    timeout_s: float = setting(
        "10s", parse=bounded(duration, low="100ms", high="10m"), help="How long each check may take."
    )
